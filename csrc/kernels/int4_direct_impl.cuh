// The kernel of int4_gemm.cuh for up to 16 rows of x: codes go from memory straight to the registers that need them.
//
// A block has 32 rows of the weight and their whole depth at a time, and goes from tile to tile; its warps take turns
// at chunks of 256 places. Each lane holds the codes of a chunk, and fetches those of the warp's next chunk, be it of
// the next tile, the moment it has turned one vector into operand A: a warp has about 4 KB in flight, and nobody waits
// for anybody before a tile's end, where the warps' sums are added.
//
// Each warp has its own part of x in shared memory, in pieces of 128 places: all that it ever needs where that fits
// (the same places for each tile), else the next few pieces.
#pragma once

#include "device/int4_decode.cuh"
#include "device/launch.cuh"
#include "kernels/int4_gemm_result.cuh"

namespace cuvil {
namespace int4_gemm {

template <typename T_, int Columns_, bool Units_>
struct DirectShape {
  using T = T_;
  static constexpr int Columns = Columns_, Nt = Columns / 8;
  // Units of 32 places whose sums are scaled together: those of a piece, or each on its own.
  static constexpr int kScaled = Units_ ? 1 : Int4Direct::kPiece / kUnitDepth;
};

struct DirectLaunch {
  int tiles, chunks, depth_units;
  int turns;        // of the busiest warps, a chunk each
  int piece_bytes;  // of x
  bool all_x;       // fits in shared memory
  bool y_vectors;
};

template <typename S>
struct Direct {
  using T = typename S::T;
  static constexpr int kUnits = Int4Direct::kChunk / kUnitDepth, kPieceUnits = Int4Direct::kPiece / kUnitDepth;
  static constexpr int kPieces = kUnits / kPieceUnits, kGroups = kUnits / S::kScaled;
  static constexpr int kPitch = int4_pitch(Int4Direct::kPiece), kPitchOut = Int4Direct::kPitchOut;

  const Int4GemmParams& p;
  const DirectLaunch& l;
  unsigned char* shared;
  int lane, warp, warps;
  uint64_t policy;

  // A lane's part of a chunk.
  struct Chunk {
    uint4 codes[kUnits] = {};
    uint2 scales[kGroups] = {};
    uint32_t zeros[kGroups];
  };
  // The chunk that the warp fetches next.
  struct Feed {
    int tile, chunk;
    const uint4* codes;
    int units;  // of the depth from there on, none behind the last tile
  };

  __device__ __forceinline__ void aim(Feed& f) const {
    f.codes = p.weight.codes + (static_cast<int64_t>(f.tile) * l.depth_units + f.chunk * kUnits) * 32 + lane;
    f.units = f.tile < l.tiles ? l.depth_units - f.chunk * kUnits : 0;
  }
  __device__ __forceinline__ void advance(Feed& f) const {
    f.chunk += warps, f.codes += warps * (kUnits * 32), f.units -= warps * kUnits;
    if (f.chunk < l.chunks) return;
    f.chunk = warp, f.tile += static_cast<int>(gridDim.x);
    aim(f);
  }
  // What lies behind the end stays what it was: x is 0 there.
  __device__ __forceinline__ void fetch_unit(Chunk& c, int unit, const Feed& f) const {
    if (unit < f.units) c.codes[unit] = load16_once(f.codes + unit * 32, policy);
  }
  __device__ __forceinline__ void fetch_group(Chunk& c, int i, const Feed& f) const {
    const Int4Weight& w = p.weight;
    const bool there = f.units > i * S::kScaled;
    const int group = (f.chunk * kUnits + i * S::kScaled) * kUnitDepth >> w.group_shift;
    const int64_t at = (static_cast<int64_t>(group) * l.tiles + f.tile) * (kUnitRows / 4) + lane / 4;
    if (there) c.scales[i] = __ldcg(static_cast<const uint2*>(w.scales) + at);
    if (there && w.zeros) c.zeros[i] = __ldcg(reinterpret_cast<const unsigned*>(w.zeros) + at);
  }

  __device__ __forceinline__ unsigned char* piece(int slot) const {
    return shared + (warp * p.way.stages + slot) * l.piece_bytes;
  }
  // Sums of a tile, [warps, m, kPitchOut].
  __device__ __forceinline__ float* sums() const {
    return reinterpret_cast<float*>(shared + warps * p.way.stages * l.piece_bytes);
  }

  // The warp's i-th piece of a tile, zeros behind the end of the depth.
  __device__ __forceinline__ void fetch_x(unsigned char* to, int i) const {
    constexpr int kVectors = Int4Direct::kPiece / 8;
    const int place = ((warp + i / kPieces * warps) * kPieces + i % kPieces) * Int4Direct::kPiece + lane % kVectors * 8;
    const bool valid = place < p.weight.depth;
    const T* from = static_cast<const T*>(p.x) + (valid ? place : 0);
#pragma unroll 1
    for (int row = lane / kVectors; row < p.m; row += 32 / kVectors)
      copy16_async(to + row * kPitch * 2 + lane % kVectors * 16, from + static_cast<int64_t>(row) * p.weight.depth,
                   valid);
  }

  // Products of a piece's units, from `first` on, with x; the next chunk's codes are fetched in their place.
  __device__ __forceinline__ void multiply(float (&acc)[2][S::Nt][4], Chunk& c, int first, const unsigned char* x,
                                           const int (&x_row)[S::Nt], const Feed& next) const {
#pragma unroll
    for (int from = 0; from < kPieceUnits; from += S::kScaled) {
      const int group = (first + from) / S::kScaled;
      Integers<T> integers;
      integers.load(c.zeros[group]);
      float sum[2][S::Nt][4] = {};
#pragma unroll
      for (int u = from; u < from + S::kScaled; ++u) {
        const uint4 v = c.codes[first + u];
        const uint32_t words[4] = {v.x, v.y, v.z, v.w};
        uint32_t a[2][2][4];
#pragma unroll
        for (int tile = 0; tile < 2; ++tile)
#pragma unroll
          for (int step = 0; step < 2; ++step)
#pragma unroll
            for (int r = 0; r < 4; ++r) a[tile][step][r] = as_word(integers.pair(words[2 * tile + step], tile, r));
        fetch_unit(c, first + u, next);
#pragma unroll
        for (int n = 0; n < S::Nt; ++n) {
          uint32_t b[4];
          load_matrices(b, x + x_row[n] + u * kUnitDepth * 2);
          mma_16x8x16<T>(sum[0][n], a[0][0], b[0], b[1]);
          mma_16x8x16<T>(sum[1][n], a[1][0], b[0], b[1]);
          mma_16x8x16<T>(sum[0][n], a[0][1], b[2], b[3]);
          mma_16x8x16<T>(sum[1][n], a[1][1], b[2], b[3]);
        }
      }
      const uint32_t packed[2] = {c.scales[group].x, c.scales[group].y};
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        const auto* scale = reinterpret_cast<const T*>(&packed[t]);  // of rows g and g + 8
#pragma unroll
        for (int n = 0; n < S::Nt; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) acc[t][n][i] = fmaf(to_compute(scale[i / 2]), sum[t][n][i], acc[t][n][i]);
      }
      fetch_group(c, group, next);
    }
  }

  // Adds the warps' sums of a tile, in their order.
  __device__ __forceinline__ void finish(const float (&acc)[2][S::Nt][4], int tile) const {
    const int g = lane / 4, q = lane % 4;
    float* mine = sums() + warp * p.m * kPitchOut;
    __syncthreads();  // the sums of the tile before have been read
#pragma unroll
    for (int n = 0; n < S::Nt; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int column = n * 8 + 2 * q + half;
        if (column < p.m)
#pragma unroll
          for (int j = 0; j < 4; ++j) mine[column * kPitchOut + j * 8 + g] = acc[j / 2][n][j % 2 * 2 + half];
      }
    __syncthreads();
    constexpr int kVectors = kUnitRows / 4;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < p.m * kVectors; i += warps * 32) {
      const int column = i / kVectors, row = i % kVectors * 4;
      const float* from = sums() + column * kPitchOut + row;
      float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 4
      for (int w = 0; w < warps; ++w) {
        const float4 v = *reinterpret_cast<const float4*>(from + w * p.m * kPitchOut);
        sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
      }
      emit<T>(p, l.y_vectors, column, tile * kUnitRows + row, sum);
    }
  }

  __device__ __forceinline__ void wait_for_piece() const {
    if (p.way.stages == 2)
      wait_copies<1>();
    else if (p.way.stages == 3)
      wait_copies<2>();
    else
      wait_copies<3>();
    __syncwarp();
  }

  __device__ __forceinline__ void run() const {
    Feed feed{static_cast<int>(blockIdx.x), warp, nullptr, 0};
    aim(feed);
    Chunk chunk;
#pragma unroll
    for (int i = 0; i < kGroups; ++i) chunk.zeros[i] = static_cast<uint32_t>(p.weight.zero) * 0x01010101u;
    if (!p.constant_weight) wait_for_predecessor();
    if (warp < l.chunks) {
#pragma unroll
      for (int u = 0; u < kUnits; ++u) fetch_unit(chunk, u, feed);
#pragma unroll
      for (int i = 0; i < kGroups; ++i) fetch_group(chunk, i, feed);
    }
    wait_for_predecessor();  // from here on x is there
    // Of the warp, each tile.
    const int pieces = (l.turns - (warp + (l.turns - 1) * warps >= l.chunks ? 1 : 0)) * kPieces;
    const int ahead = l.all_x || pieces == 0 ? pieces : p.way.stages;
    int next_x = 0;  // the piece to be fetched next
#pragma unroll 1
    for (int i = 0; i < ahead; ++i) {
      fetch_x(piece(i), next_x);
      commit_copies();
      if (++next_x == pieces) next_x = 0;
    }
    if (l.all_x) {
      wait_copies<0>();
      __syncwarp();
    }
    // Where a lane's row of eight lies in a piece: behind the last row of x, that one.
    int x_row[S::Nt];
#pragma unroll
    for (int n = 0; n < S::Nt; ++n) x_row[n] = min(n * 8 + lane % 8, p.m - 1) * kPitch * 2 + lane / 8 * 16;

    unsigned char *const first_x = piece(0), *const end_x = piece(p.way.stages), *x = first_x;
#pragma unroll 1
    for (int tile = static_cast<int>(blockIdx.x); tile < l.tiles; tile += static_cast<int>(gridDim.x)) {
      float acc[2][S::Nt][4] = {};
      if (l.all_x) x = first_x;
#pragma unroll 1
      for (int at = warp; at < l.chunks; at += warps) {
        advance(feed);
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
          if (!l.all_x) wait_for_piece();
          multiply(acc, chunk, i * kPieceUnits, x, x_row, feed);
          if (!l.all_x) {
            __syncwarp();
            fetch_x(x, next_x);
            commit_copies();
            if (++next_x == pieces) next_x = 0;
          }
          x += l.piece_bytes;
          if (x == end_x) x = first_x;
        }
      }
      finish(acc, tile);
    }
    wait_copies<0>();
  }
};

extern __shared__ __align__(16) unsigned char direct_shared[];

template <typename S>
__global__ void __launch_bounds__(Int4Direct::kMostWarps * 32, 1)
    int4_direct_kernel(const __grid_constant__ Int4GemmParams p, const __grid_constant__ DirectLaunch l) {
  let_successor_start();
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  Direct<S>{p, l, direct_shared, lane, warp, p.way.warps, l2_policy(true)}.run();
}

template <typename S>
cudaError_t launch_direct(Int4GemmParams p, cudaStream_t stream) {
  using T = typename S::T;
  // `stages` is meant for `columns` rows: of fewer rows all pieces may fit in as much.
  const int chunks = Int4Direct::chunks(p.weight), all = Int4Direct::pieces(p.weight, p.way);
  if (all * p.m <= p.way.stages * p.way.columns) p.way.stages = all;
  const int bytes = Int4Direct::shared_bytes(p.way, p.m);
  const DirectLaunch l{p.weight.row_units(),
                       chunks,
                       p.weight.depth_units(),
                       all / (Int4Direct::kChunk / Int4Direct::kPiece),
                       p.m * int4_pitch(Int4Direct::kPiece) * 2,
                       p.way.stages >= all,
                       reinterpret_cast<uintptr_t>(p.y) % (4 * sizeof(T)) == 0 && p.weight.rows % 4 == 0};
  if (!l.all_x && (p.way.stages < 2 || p.way.stages > Int4Direct::kMostPieces)) return cudaErrorInvalidValue;
  if (bytes > 48 * 1024) {
    const cudaError_t code =
        cudaFuncSetAttribute(int4_direct_kernel<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (code != cudaSuccess) return code;
  }
  launch_early(int4_direct_kernel<S>, dim3(static_cast<unsigned>(p.way.blocks)),
               dim3(static_cast<unsigned>(p.way.warps) * 32), static_cast<size_t>(bytes), stream, p, l);
  return cudaGetLastError();
}

template <typename T>
cudaError_t launch_direct_any(const Int4GemmParams& p, cudaStream_t stream) {
  if (!int4_direct_serves(p.weight) || p.m > p.way.columns || p.way.warps > Int4Direct::kMostWarps || p.way.blocks < 1)
    return cudaErrorInvalidValue;
  const bool units = 1 << p.weight.group_shift < Int4Direct::kPiece;
  switch (p.way.columns) {
    case 8:
      return units ? launch_direct<DirectShape<T, 8, true>>(p, stream)
                   : launch_direct<DirectShape<T, 8, false>>(p, stream);
    case 16:
      return units ? launch_direct<DirectShape<T, 16, true>>(p, stream)
                   : launch_direct<DirectShape<T, 16, false>>(p, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace int4_gemm
}  // namespace cuvil
