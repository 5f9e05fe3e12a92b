// The kernel of int4_gemm.cuh.
//
// Operands are swapped: the weight is the tensor cores' A (16 rows), x their B (8 columns), so that one row of x wastes
// no more than seven eighths of one instruction. Nobody shares codes: each lane copies its own vectors to shared memory
// (cp.async, many in flight) and reads them back. x, scales and zero points are shared by the block.
//
//   row tile (128 or 256 rows of the weight) x column tile (8 to 128 rows of x) = tile;  depth / step = steps
//   [tile 0: step 0 .. n-1][tile 1: step 0 .. n-1] ...  cut into `blocks` equal runs (device/tile_schedule.cuh)
//
// Tiles leave through int4_gemm_result.cuh.
#pragma once

#include "kernels/int4_gemm_parts.cuh"

namespace cuvil {
namespace int4_gemm {

template <typename S>
struct Block : Operands<S> {
  using Base = Operands<S>;
  using T = typename S::T;
  using Base::p, Base::l, Base::lane, Base::warp, Base::warp_row, Base::warp_depth, Base::g, Base::q;
  using Base::stage, Base::out, Base::kWarpVectors, Base::aim, Base::advance, Base::fetch_weight, Base::fetch_x;

  // Where this lane's address for load_matrices lies: row lane % 8 of eight rows of x, its eight places lane / 8 of 32.
  __device__ __forceinline__ const T* x_of(const unsigned char* from) const {
    return reinterpret_cast<const T*>(from + l.stage.x) + lane % 8 * S::Pitch + lane / 8 * 8;
  }

  // A step whose places are of one group, without offsets: the sum of (16 + code) x, less (16 + zero) times the sum of
  // x, times the scale. A third fewer instructions than with the weight as numbers, whose rounding is left out. False
  // where x holds what is no number: infinity less infinity would make NaN of each.
  __device__ __forceinline__ bool multiply_raised(float (&acc)[2][S::Nt][4], int slot, int columns) const {
    const unsigned char* from = stage(slot);
    const uint4* codes = reinterpret_cast<const uint4*>(from) + warp * kWarpVectors + lane;
    const int first_depth = warp_depth * S::Units * kUnitDepth;
    const T* x = x_of(from) + first_depth;
    float raised[2][S::Nt][4] = {}, sum[S::Nt][4] = {};
    const uint32_t ones = pack_pair<T>(1.f, 1.f), one[4] = {ones, ones, ones, ones};
#pragma unroll
    for (int u = 0; u < S::Units; ++u) {
      const uint4 words = codes[u * 32];
      uint32_t a[2][2][4];
      decode_raised<T>(a[0][0], words.x);
      decode_raised<T>(a[0][1], words.y);
      decode_raised<T>(a[1][0], words.z);
      decode_raised<T>(a[1][1], words.w);
#pragma unroll
      for (int n = 0; n < S::Nt; ++n) {
        uint32_t b[4];
        load_matrices(b, x + n * 8 * S::Pitch + u * kUnitDepth);
        mma_16x8x16<T>(raised[0][n], a[0][0], b[0], b[1]);
        mma_16x8x16<T>(raised[1][n], a[1][0], b[0], b[1]);
        mma_16x8x16<T>(sum[n], one, b[0], b[1]);
        mma_16x8x16<T>(raised[0][n], a[0][1], b[2], b[3]);
        mma_16x8x16<T>(raised[1][n], a[1][1], b[2], b[3]);
        mma_16x8x16<T>(sum[n], one, b[2], b[3]);
      }
    }
    bool numbers = true;
#pragma unroll
    for (int n = 0; n < S::Nt; ++n)
#pragma unroll
      for (int c = 0; c < 2; ++c)  // columns beyond the last row of x hold anything
        numbers = numbers && (isfinite(sum[n][c]) || n * 8 + 2 * q + c >= columns);
    if (!__all_sync(~0u, numbers)) return false;

    const int at = (first_depth >> p.weight.group_shift) * S::Rows + warp_row * kUnitRows + g * 4;
    const uint32_t zeros = p.weight.zeros ? *reinterpret_cast<const uint32_t*>(from + l.stage.zeros + at)
                                          : static_cast<uint32_t>(p.weight.zero) * 0x01010101u;
    const Vec<T, 4> scales = load<T, 4>(reinterpret_cast<const T*>(from + l.stage.scales) + at);
#pragma unroll
    for (int j = 0; j < 4; ++j) {  // row g + 8j
      const float zero = __uint_as_float(__byte_perm(zeros, 0x4B000000u, 0x7440 | j)) - (8388608.f - 16.f);
      const float scale = to_compute(scales[j]);
#pragma unroll
      for (int n = 0; n < S::Nt; ++n)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& to = acc[j / 2][n][j % 2 * 2 + c];
          to = fmaf(scale, fmaf(-zero, sum[n][c], raised[j / 2][n][j % 2 * 2 + c]), to);
        }
    }
    return true;
  }

  // `OneGroup`: all places that a warp takes from a step are of one group.
  template <bool OneGroup>
  __device__ __forceinline__ void multiply(float (&acc)[2][S::Nt][4], int slot) const {
    const unsigned char* from = stage(slot);
    const uint4* codes = reinterpret_cast<const uint4*>(from) + warp * kWarpVectors + lane;
    const T* x = x_of(from);
    const int rows = warp_row * kUnitRows + g * 4;
    const unsigned in_group = (1u << p.weight.group_shift) - 1;
    Decoder<T, S::Bits> decoder;
#pragma unroll
    for (int u = 0; u < S::Units; ++u) {
      const int depth = (warp_depth * S::Units + u) * kUnitDepth;
      uint32_t words[S::kPlanes][4];
#pragma unroll
      for (int plane = 0; plane < S::kPlanes; ++plane) {
        const uint4 v = codes[(u * S::kPlanes + plane) * 32];
        words[plane][0] = v.x, words[plane][1] = v.y, words[plane][2] = v.z, words[plane][3] = v.w;
      }
      uint32_t a[2][2][4];
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        const int place = depth + step * kStepDepth;
        if ((u == 0 && step == 0) || (!OneGroup && (place & in_group) == 0)) {
          const int at = (place >> p.weight.group_shift) * S::Rows + rows;
          const uint32_t zeros = p.weight.zeros ? *reinterpret_cast<const uint32_t*>(from + l.stage.zeros + at)
                                                : static_cast<uint32_t>(p.weight.zero) * 0x01010101u;
          decoder.load(reinterpret_cast<const T*>(from + l.stage.scales) + at, zeros,
                       p.weight.offsets ? reinterpret_cast<const T*>(from + l.stage.offsets) + at : nullptr);
        }
#pragma unroll
        for (int tile = 0; tile < 2; ++tile)
          decoder.decode(a[tile][step], words[S::kPlanes == 2 ? tile : 0], tile, step);
      }
#pragma unroll
      for (int n = 0; n < S::Nt; ++n) {
        uint32_t b[4];
        load_matrices(b, x + n * 8 * S::Pitch + depth);
        mma_16x8x16<T>(acc[0][n], a[0][0], b[0], b[1]);
        mma_16x8x16<T>(acc[1][n], a[1][0], b[0], b[1]);
        mma_16x8x16<T>(acc[0][n], a[0][1], b[2], b[3]);
        mma_16x8x16<T>(acc[1][n], a[1][1], b[2], b[3]);
      }
    }
  }

  __device__ __forceinline__ void run() const {
    const int block = static_cast<int>(blockIdx.x), steps = l.schedule.steps;
    const int begin = l.schedule.begin(block), count = l.schedule.begin(block + 1) - begin, tile = begin / steps;
    Cursor work{tile / l.column_tiles, tile % l.column_tiles, begin % steps};
    const int ahead = p.way.stages - 1;
    typename Base::Feed feed;
    feed.at = work;
    aim(feed);
    if (!p.constant_weight) wait_for_predecessor();
    for (int i = 0; i < ahead; ++i) {
      if (i < count) fetch_weight(i, feed), advance(feed);
      commit_copies();
    }
    wait_for_predecessor();  // from here on x is there
    feed.at = work;
    aim(feed);
    for (int i = 0; i < ahead && i < count; ++i) fetch_x(i, feed, true), advance(feed);

    const Result<S> result{p, l, out(), lane, warp_row, warp_depth};
    float acc[2][S::Nt][4] = {};
    const bool one_group = 1 << p.weight.group_shift >= S::Units * kUnitDepth;
    int slot = 0, fetch_slot = ahead;
    for (int i = 0; i < count; ++i) {
      switch (p.way.stages) {
        case 2:
          wait_copies<0>();
          break;
        case 3:
          wait_copies<1>();
          break;
        case 4:
          wait_copies<2>();
          break;
        case 5:
          wait_copies<3>();
          break;
        default:
          wait_copies<4>();
          break;
      }
      __syncthreads();  // this step's operands are there, and the place of the last one's is free
      if (i + ahead < count) {
        fetch_weight(fetch_slot, feed);
        fetch_x(fetch_slot, feed, false);
        advance(feed);
      }
      commit_copies();
      bool done = false;
      if constexpr (S::kRaised)
        done = one_group && !p.weight.offsets && multiply_raised(acc, slot, p.m - work.column * S::Columns);
      if (!done && one_group) multiply<true>(acc, slot);
      if (!done && !one_group) multiply<false>(acc, slot);
      if (work.step == steps - 1 || i == count - 1) {
        result.finish(acc, work);
#pragma unroll
        for (int t = 0; t < 2; ++t)
#pragma unroll
          for (int n = 0; n < S::Nt; ++n)
#pragma unroll
            for (int c = 0; c < 4; ++c) acc[t][n][c] = 0;
      }
      work.next(steps, l.column_tiles);
      slot = slot + 1 == p.way.stages ? 0 : slot + 1;
      fetch_slot = fetch_slot + 1 == p.way.stages ? 0 : fetch_slot + 1;
    }
  }
};

extern __shared__ __align__(16) unsigned char dynamic_shared[];

template <typename S>
__global__ void __launch_bounds__(S::kThreads, S::kMinBlocks)
    int4_gemm_kernel(const __grid_constant__ Int4GemmParams p, const __grid_constant__ Launch l) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  // Codes are read once unless there are more rows of x than a tile has.
  const Block<S> block{{p, l, dynamic_shared, lane, warp, warp % S::WarpsRow, warp / S::WarpsRow, lane / 4, lane % 4,
                        l2_policy(l.column_tiles == 1)}};
  block.run();
}

template <typename S>
cudaError_t launch(const Int4GemmParams& p, cudaStream_t stream) {
  using T = typename S::T;
  const Int4Stage stage(p.weight, p.way);
  const int64_t total = int4_tiles(p.weight, p.way, p.m) * int4_steps(p.weight, p.way);
  const int bytes = int4_shared_bytes(p.weight, p.way);
  if (p.way.blocks < 1 || p.way.blocks > total || total > INT32_MAX || p.way.stages < 2 || p.way.stages > 6)
    return cudaErrorInvalidValue;
  const TileSchedule schedule = int4_schedule(p.weight, p.way, p.m);
  const auto aligned = [](const void* x, size_t n) { return reinterpret_cast<uintptr_t>(x) % n == 0; };
  const Launch l{schedule, (p.m + S::Columns - 1) / S::Columns, stage, aligned(p.x, 16) && p.weight.depth % 8 == 0,
                 aligned(p.y, 4 * sizeof(T)) && p.weight.rows % 4 == 0};
  if (bytes > 48 * 1024) {
    const cudaError_t code =
        cudaFuncSetAttribute(int4_gemm_kernel<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (code != cudaSuccess) return code;
  }
  launch_early(int4_gemm_kernel<S>, dim3(static_cast<unsigned>(p.way.blocks)), dim3(S::kThreads),
               static_cast<size_t>(bytes), stream, p, l);
  return cudaGetLastError();
}

template <typename T, int Bits>
cudaError_t launch_any(const Int4GemmParams& p, cudaStream_t stream) {
  const bool wide = p.way.wide;
  switch (p.way.columns) {
    case 8:
      return wide ? launch<Shape<T, Bits, 8, true>>(p, stream) : launch<Shape<T, Bits, 8, false>>(p, stream);
    case 16:
      return wide ? launch<Shape<T, Bits, 16, true>>(p, stream) : launch<Shape<T, Bits, 16, false>>(p, stream);
    case 32:
      return wide ? launch<Shape<T, Bits, 32, true>>(p, stream) : launch<Shape<T, Bits, 32, false>>(p, stream);
    case 64:
      return wide ? launch<Shape<T, Bits, 64, true>>(p, stream) : cudaErrorInvalidValue;
    case 128:
      return wide ? launch<Shape<T, Bits, 128, true>>(p, stream) : cudaErrorInvalidValue;
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace int4_gemm
}  // namespace cuvil
