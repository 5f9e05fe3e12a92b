// y = act(x W + bias + residual) with a packed weight of 4 or 8 bits, on the tensor cores: float16 and bfloat16. Three
// kernels: two for any GPU from sm_80 on (mma.sync, int4_gemm_impl.cuh, and int4_direct_impl.cuh for a few rows of x),
// one for sm_90 (wgmma, int4_wgmma_impl.cuh).
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "device/activation.h"
#include "device/tile_schedule.cuh"
#include "kernels/int4_weight.cuh"

namespace cuvil {

// How a product is cut up. A block's 8 warps have 4 x 32 rows of the weight and share the depth two ways (narrow), or
// have 8 x 32 rows (wide); `columns` rows of x at a time. Where `warps` is not 0 (int4_direct_impl.cuh), a block's
// warps have 32 rows and share the depth.
struct Int4Way {
  int columns = 8;  // 8, 16 or 32; 64 or 128 wide only; direct 8 or 16
  bool wide = false;
  int stages = 4;      // steps whose operands are in flight, 2 to 6; direct: pieces of x that a warp has room for
  int blocks = 1;      // of the whole grid, at most int4_steps()
  bool wgmma = false;  // the kernel for sm_90: wide, 4 bits
  int warps = 0;       // of a block of the direct kernel, 4 bits

  bool operator==(const Int4Way&) const = default;
  int rows() const { return warps > 0 ? device::kUnitRows : wide ? 256 : 128; }
  // Units of 32 places that a warp takes a step.
  static constexpr int units(int bits, int columns) { return bits == 4 && columns < 64 ? 4 : 2; }
  int depth(int bits) const {
    if (warps > 0) return kDirectChunk;
    return wgmma ? 128 : (wide ? 32 : 64) * units(bits, columns);
  }
  static constexpr int kDirectChunk = 256;
};

// Padding of a row of x in shared memory: 16 bytes of 8 rows then lie in different banks.
constexpr int int4_pitch(int depth) { return depth + 8; }
// Columns that leave a block at a time.
constexpr int int4_columns_out(int columns) { return columns == 8 || columns >= 64 ? 8 : 16; }

// Shared memory of one step: byte offsets of the parts.
struct Int4Stage {
  static constexpr int kSwizzle = 1024;  // alignment of what the tensor cores of sm_90 read
  int codes = 0, x = 0, scales = 0, zeros = 0, offsets = 0, bytes = 0;
  int groups = 1;  // a step's

  Int4Stage(const Int4Weight& w, const Int4Way& way) {
    const int depth = way.depth(w.bits);
    groups = std::max(1, w.group_shift < 30 ? depth >> w.group_shift : 0);
    const int code_bytes = way.rows() * depth * w.bits / 8;
    if (way.wgmma) {
      codes = way.columns * depth * 2;
      scales = codes + code_bytes;
    } else {
      x = code_bytes;
      scales = x + way.columns * int4_pitch(depth) * 2;
    }
    zeros = scales + groups * way.rows() * 2;
    offsets = zeros + (w.zeros ? groups * way.rows() : 0);
    bytes = offsets + (w.offsets ? groups * way.rows() * 2 : 0);
    if (way.wgmma) bytes = (bytes + kSwizzle - 1) / kSwizzle * kSwizzle;
  }
};

inline int int4_shared_bytes(const Int4Weight& w, const Int4Way& way) {
  // With wgmma, room to align the first stage and for two barriers a stage, too.
  const int more = way.wgmma ? Int4Stage::kSwizzle + 2 * 8 * way.stages : 0;
  return way.stages * Int4Stage(w, way).bytes + int4_columns_out(way.columns) * (way.rows() + 4) * 4 + more;
}

// The direct kernel's measures. A warp takes chunks of the depth in turn, and x in pieces.
struct Int4Direct {
  static constexpr int kChunk = Int4Way::kDirectChunk, kPiece = 128, kMostWarps = 16;
  static constexpr int kMostPieces = 4;                    // that a warp has room for, unless it is for all
  static constexpr int kPitchOut = device::kUnitRows + 4;  // of a column of sums

  static int chunks(const Int4Weight& w) { return (w.depth + kChunk - 1) / kChunk; }
  // Pieces of x that a warp needs in all.
  static int pieces(const Int4Weight& w, const Int4Way& way) {
    return (chunks(w) + way.warps - 1) / way.warps * (kChunk / kPiece);
  }
  static int shared_bytes(const Int4Way& way, int m) {
    return way.warps * m * (way.stages * int4_pitch(kPiece) * 2 + kPitchOut * 4);
  }
};

struct Int4GemmParams {
  Int4Weight weight;
  const void* x = nullptr;  // [m, weight.depth]
  int m = 0;
  const void* bias = nullptr;      // weight.rows of them
  const void* residual = nullptr;  // as y
  ActivationParams activation;
  void* y = nullptr;  // [m, weight.rows]
  Int4Way way;
  float* partial = nullptr;      // int4_partial_bytes(): sums of tiles that several blocks share
  unsigned* counters = nullptr;  // int4_tiles() zeros, which are zeros again afterwards
  // No kernel of this run writes the weight: its first steps may be fetched while the kernel in front still runs.
  bool constant_weight = false;
};

inline int int4_row_tiles(const Int4Weight& w, const Int4Way& way) { return (w.rows + way.rows() - 1) / way.rows(); }
inline int64_t int4_tiles(const Int4Weight& w, const Int4Way& way, int m) {
  return int64_t{int4_row_tiles(w, way)} * ((m + way.columns - 1) / way.columns);
}
// Steps of each tile.
inline int int4_steps(const Int4Weight& w, const Int4Way& way) {
  const int depth = way.depth(w.bits);
  return (w.depth + depth - 1) / depth;
}
inline device::TileSchedule int4_schedule(const Int4Weight& w, const Int4Way& way, int m) {
  return {static_cast<int>(int4_tiles(w, way, m)), int4_steps(w, way), way.blocks};
}
// None when every tile belongs to one block.
inline size_t int4_partial_bytes(const Int4Weight& w, const Int4Way& way, int m) {
  if (way.warps > 0 || int4_tiles(w, way, m) % way.blocks == 0) return 0;
  return size_t{2} * static_cast<size_t>(way.blocks) * static_cast<size_t>(way.rows() * way.columns) * sizeof(float);
}

// m, rows and depth above 0. x of any alignment; 16 bytes and a depth that 8 divides are fastest.
cudaError_t launch_int4_gemm(const Int4GemmParams& p, cudaStream_t stream);

// The parts of it, one for each type and number of bits.
cudaError_t launch_int4_gemm_f16_4(const Int4GemmParams& p, cudaStream_t stream);
cudaError_t launch_int4_gemm_f16_8(const Int4GemmParams& p, cudaStream_t stream);
cudaError_t launch_int4_gemm_bf16_4(const Int4GemmParams& p, cudaStream_t stream);
cudaError_t launch_int4_gemm_bf16_8(const Int4GemmParams& p, cudaStream_t stream);
cudaError_t launch_int4_wgmma_f16(const Int4GemmParams& p, cudaStream_t stream);
cudaError_t launch_int4_wgmma_bf16(const Int4GemmParams& p, cudaStream_t stream);
cudaError_t launch_int4_direct_f16(const Int4GemmParams& p, cudaStream_t stream);
cudaError_t launch_int4_direct_bf16(const Int4GemmParams& p, cudaStream_t stream);

// What the kernel with wgmma needs of a weight; of x it needs an address that 16 divides.
inline bool int4_wgmma_serves(const Int4Weight& w) {
  return w.bits == 4 && w.group_shift >= 5 && w.depth % 8 == 0 && w.dtype != DType::kF32;
}
// The direct kernel: the same of x.
inline bool int4_direct_serves(const Int4Weight& w) { return int4_wgmma_serves(w) && !w.offsets; }

}  // namespace cuvil
