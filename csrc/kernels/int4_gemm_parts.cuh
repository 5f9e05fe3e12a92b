// What the kernel of int4_gemm_impl.cuh is made of: its shapes, a thread's place, and how operands get to shared
// memory.
#pragma once

#include "device/int4_decode.cuh"
#include "device/launch.cuh"
#include "kernels/int4_gemm_result.cuh"

namespace cuvil {
namespace int4_gemm {

using namespace device;

template <typename T_, int Bits_, int Columns_, bool Wide>
struct Shape {
  using T = T_;
  static constexpr int Bits = Bits_, Columns = Columns_;
  static constexpr int WarpsRow = Wide ? 8 : 4, WarpsDepth = Wide ? 1 : 2, kThreads = 256;
  static constexpr int Units = Int4Way::units(Bits, Columns);
  static constexpr int Rows = WarpsRow * kUnitRows, Depth = WarpsDepth * Units * kUnitDepth;
  static constexpr int Pitch = int4_pitch(Depth);
  static constexpr int Nt = Columns / 8;
  static constexpr int ColumnsOut = int4_columns_out(Columns);
  static constexpr int kPlanes = Bits / 4;
  // Many columns take most registers of a multiprocessor.
  static constexpr int kMinBlocks = Columns < 64 ? 2 : 1;
  static constexpr int PitchOut = Rows + 4;
  // With few columns the instructions that make numbers of codes are what is scarce, not those of the tensor cores.
  static constexpr bool kRaised = Bits == 4 && Columns <= 16;
  static __device__ __forceinline__ void sync() { __syncthreads(); }
};

// A thread of a block, and how it fetches the operands of a step.
template <typename S>
struct Operands {
  using T = typename S::T;
  const Int4GemmParams& p;
  const Launch& l;
  unsigned char* shared;
  int lane, warp, warp_row, warp_depth, g, q;
  uint64_t weight_policy;

  __device__ __forceinline__ unsigned char* stage(int i) const { return shared + i * l.stage.bytes; }
  __device__ __forceinline__ float* out() const { return reinterpret_cast<float*>(stage(p.way.stages)); }
  // Vectors of a warp's codes in a stage.
  static constexpr int kWarpVectors = S::Units * S::kPlanes * 32;

  // Where a thread fetches next.
  struct Feed {
    Cursor at;
    const uint4* codes;
    int units;  // of the depth from there on, none where there is no row
    const T* x;
    int places, columns;  // from there on
  };
  static constexpr int kRowVectors = S::Depth / 8, kColumnsApart = S::kThreads / kRowVectors;

  __device__ __forceinline__ void aim(Feed& f) const {
    const Int4Weight& w = p.weight;
    const int row_unit = f.at.row * S::WarpsRow + warp_row, depth_units = w.depth_units();
    const int depth_unit = (f.at.step * S::WarpsDepth + warp_depth) * S::Units;
    f.codes = w.codes + (static_cast<int64_t>(row_unit) * depth_units + depth_unit) * (S::kPlanes * 32) + lane;
    f.units = row_unit < w.row_units() ? depth_units - depth_unit : 0;
    const int column = f.at.column * S::Columns + threadIdx.x / kRowVectors;
    const int place = f.at.step * S::Depth + threadIdx.x % kRowVectors * 8;
    f.x = static_cast<const T*>(p.x) + static_cast<int64_t>(column) * w.depth + place;
    f.places = w.depth - place;
    f.columns = p.m - column;
  }

  __device__ __forceinline__ void advance(Feed& f) const {
    f.at.next(l.schedule.steps, l.column_tiles);
    if (f.at.step == 0) return aim(f);
    constexpr int kUnits = S::WarpsDepth * S::Units;
    f.codes += kUnits * S::kPlanes * 32;
    f.units -= kUnits;
    f.x += S::Depth;
    f.places -= S::Depth;
  }

  __device__ __forceinline__ void fetch_weight(int slot, const Feed& f) const {
    const Int4Weight& w = p.weight;
    unsigned char* to = stage(slot);
    uint4* mine = reinterpret_cast<uint4*>(to) + warp * kWarpVectors + lane;
    if (f.units >= S::Units) {
#pragma unroll
      for (int i = 0; i < S::Units * S::kPlanes; ++i)
        copy16_async(mine + i * 32, f.codes + i * 32, true, weight_policy);
    } else {  // zeros behind the end
#pragma unroll
      for (int i = 0; i < S::Units * S::kPlanes; ++i) {
        const bool valid = i / S::kPlanes < f.units;
        copy16_async(mine + i * 32, valid ? f.codes + i * 32 : w.codes, valid, weight_policy);
      }
    }
    const int first_group = (f.at.step * S::Depth) >> w.group_shift;
    const int first_row = f.at.row * S::Rows, width = w.row_units() * kUnitRows;
    fetch_groups<2>(to + l.stage.scales, w.scales, first_group, first_row, width);
    if (w.zeros) fetch_groups<1>(to + l.stage.zeros, w.zeros, first_group, first_row, width);
    if (w.offsets) fetch_groups<2>(to + l.stage.offsets, w.offsets, first_group, first_row, width);
  }

  // One row of values a group; a copy is 16 bytes of one group.
  template <int Bytes>
  __device__ __forceinline__ void fetch_groups(unsigned char* to, const void* values, int first_group, int first_row,
                                               int width) const {
    constexpr int kVectors = S::Rows * Bytes / 16, kValues = 16 / Bytes;
#pragma unroll 1
    for (int i = threadIdx.x; i < l.stage.groups * kVectors; i += S::kThreads) {
      const int group = first_group + i / kVectors, row = first_row + i % kVectors * kValues;
      const bool valid = group < p.weight.groups && row < width;
      const char* from = static_cast<const char*>(values) + (static_cast<int64_t>(group) * width + row) * Bytes;
      copy16_async(to + i * 16, valid ? from : values, valid);
    }
  }

  // Rows of x, zeros behind the end of their depth. Columns of the tile beyond the last row stay as they are: nobody
  // looks at what they become. `now`: by ordinary loads, which do not queue behind the copies of codes.
  __device__ __forceinline__ void fetch_x(int slot, const Feed& f, bool now) const {
    T* to = reinterpret_cast<T*>(stage(slot) + l.stage.x) + threadIdx.x / kRowVectors * S::Pitch +
            threadIdx.x % kRowVectors * 8;
    static_assert(S::kThreads % kRowVectors == 0);
#pragma unroll
    for (int j = 0; j < (S::Columns + kColumnsApart - 1) / kColumnsApart; ++j) {
      if (S::Columns % kColumnsApart != 0 && threadIdx.x / kRowVectors + j * kColumnsApart >= S::Columns) break;
      if (j * kColumnsApart >= f.columns) break;
      T* place = to + j * kColumnsApart * S::Pitch;
      const T* from = f.x + static_cast<int64_t>(j) * kColumnsApart * p.weight.depth;
      if (l.x_vectors) {
        const bool valid = f.places > 0;
        if (now)
          *reinterpret_cast<uint4*>(place) = valid ? *reinterpret_cast<const uint4*>(from) : make_uint4(0, 0, 0, 0);
        else
          copy16_async(place, valid ? from : static_cast<const T*>(p.x), valid);
      } else {
        Vec<T, 8> v;
#pragma unroll
        for (int k = 0; k < 8; ++k) v[k] = k < f.places ? from[k] : from_compute<T>(0.f);
        store<T, 8>(place, v);
      }
    }
  }
};

}  // namespace int4_gemm
}  // namespace cuvil
