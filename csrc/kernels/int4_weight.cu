#include "device/by_type.cuh"
#include "device/index.cuh"
#include "device/vec.cuh"
#include "kernels/int4_weight.cuh"

namespace cuvil {
namespace {

using namespace device;

constexpr int kThreads = 256;

// A thread packs one vector of 16 bytes.
__global__ void __launch_bounds__(kThreads) pack_codes(PackCodesParams p, int64_t total) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= total) return;
  const int planes = p.weight.bits / 4, lane = static_cast<int>(i % 32), plane = static_cast<int>(i / 32 % planes);
  const int64_t unit = i / 32 / planes;
  const int64_t row = unit / p.weight.depth_units() * kUnitRows, depth = unit % p.weight.depth_units() * kUnitDepth;
  uint32_t words[4];
#pragma unroll
  for (int w = 0; w < 4; ++w)
    words[w] = pack_word(p.codes, p.weight.rows, p.weight.depth, p.order, p.weight.bits, row, depth, lane, plane, w);
  const_cast<uint4*>(p.weight.codes)[i] = make_uint4(words[0], words[1], words[2], words[3]);
}

// Of the i-th value of [groups, row units, 32] in the model's numbering.
struct GroupRow {
  int64_t group, row;
  bool inside;
};
__device__ __forceinline__ GroupRow group_row(const Int4Weight& w, const int32_t* groups, int64_t i) {
  const int place = static_cast<int>(i % kUnitRows);
  const int64_t units = w.row_units(), group = i / kUnitRows / units;
  const int64_t row = i / kUnitRows % units * kUnitRows + place / 4 + place % 4 * 8;
  return {groups ? groups[group] : group, row, row < w.rows};
}

template <typename T>
__global__ void __launch_bounds__(kThreads) pack_groups(PackGroupsParams p, int64_t total) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= total) return;
  const GroupRow at = group_row(p.weight, p.groups, i);
  const T* values = static_cast<const T*>(p.values);
  static_cast<T*>(p.packed)[i] =
      at.inside ? values[at.row * p.stride_row + at.group * p.stride_group] : from_compute<T>(0.f);
}

__global__ void __launch_bounds__(kThreads) pack_zeros(PackZerosParams p, int64_t total) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= total) return;
  const GroupRow at = group_row(p.weight, p.groups, i);
  p.packed[i] = static_cast<uint8_t>(at.inside ? p.codes.at(at.row, at.group) : 0);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) pack_float_zeros(PackFloatZerosParams p, int64_t total) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= total) return;
  const GroupRow at = group_row(p.weight, p.groups, i);
  float zero = 0;
  if (at.inside) zero = to_compute(static_cast<const T*>(p.values)[at.row * p.stride_row + at.group * p.stride_group]);
  const float most = static_cast<float>((1 << p.weight.bits) - 1);
  const float nearest = rintf(fminf(fmaxf(zero, 0.f), most));  // 0 of a NaN, which stays in the difference
  const float scale = to_compute(static_cast<const T*>(p.weight.scales)[i]);
  p.packed_zeros[i] = static_cast<uint8_t>(nearest);
  static_cast<T*>(p.packed_offsets)[i] = from_compute<T>((nearest - zero) * scale);
}

// A warp unpacks a unit. Lane 4g + q writes places 8q to 8q + 7 of rows g, g + 8, g + 16 and g + 24, whose codes the
// four lanes of its g hold.
template <typename T, int Bits>
__global__ void __launch_bounds__(kThreads) unpack(Int4Weight w, T* y, int64_t total, bool vectors) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= total) return;  // of whole warps
  constexpr int kRun = 8;
  const int lane = static_cast<int>(i % 32), g = lane / 4, q = lane % 4;
  const int64_t unit = i / 32, row_unit = unit / w.depth_units();
  const int64_t depth = unit % w.depth_units() * kUnitDepth + q * kRun;
  uint32_t words[Bits / 4][4];
#pragma unroll
  for (int plane = 0; plane < Bits / 4; ++plane) {
    const uint4 v = w.codes[(unit * (Bits / 4) + plane) * 32 + lane];
    words[plane][0] = v.x, words[plane][1] = v.y, words[plane][2] = v.z, words[plane][3] = v.w;
  }
  const int64_t values = ((depth >> w.group_shift) * w.row_units() + row_unit) * kUnitRows + g * 4;
#pragma unroll
  for (int j = 0; j < 4; ++j) {  // row g + 8j: tile j / 2, registers j % 2 and j % 2 + 2
    // Its places are those of step q / 2 in registers j % 2 + q % 2 * 2, a pair from each of the four lanes.
    uint32_t held[4];
#pragma unroll
    for (int from = 0; from < 4; ++from) {
      const CodePlace low = code_place(Bits, j / 2, 0, 0, 0), high = code_place(Bits, j / 2, 1, 0, 0);
      uint32_t a = __shfl_sync(~0u, words[low.plane][low.word], g * 4 + from);
      uint32_t b = __shfl_sync(~0u, words[high.plane][high.word], g * 4 + from);
      if constexpr (Bits == 8) {  // registers 2 and 3 are in the next word
        const uint32_t a2 = __shfl_sync(~0u, words[low.plane][low.word + 1], g * 4 + from);
        const uint32_t b2 = __shfl_sync(~0u, words[high.plane][high.word + 1], g * 4 + from);
        if (q % 2) a = a2, b = b2;
      }
      held[from] = q / 2 ? b : a;
    }
    const int64_t row = row_unit * kUnitRows + g + 8 * j;
    if (row >= w.rows || depth >= w.depth) continue;
    const float scale = to_compute(static_cast<const T*>(w.scales)[values + j]);
    const int zero = w.zeros ? w.zeros[values + j] : w.zero;
    const float offset = w.offsets ? to_compute(static_cast<const T*>(w.offsets)[values + j]) : 0.f;
    const int shift = code_place(Bits, 0, 0, j % 2, 0).shift + (Bits == 4 ? q % 2 * 8 : 0);
    alignas(16) T out[kRun];
#pragma unroll
    for (int k = 0; k < kRun; ++k) {
      const int half = code_place(Bits, 0, 0, 0, k % 2).shift;
      const int code = held[k / 2] >> (shift + half) & ((1 << Bits) - 1);
      out[k] = from_compute<T>(fmaf(static_cast<float>(code - zero), scale, offset));
    }
    T* to = y + row * w.depth + depth;
    if (vectors) {
      constexpr int V = kVec16<T>;
#pragma unroll
      for (int k = 0; k < kRun; k += V) store<T, V>(to + k, *reinterpret_cast<const Vec<T, V>*>(out + k));
    } else {
#pragma unroll
      for (int k = 0; k < kRun; ++k)
        if (depth + k < w.depth) to[k] = out[k];
    }
  }
}

template <typename E>
__global__ void __launch_bounds__(kThreads) order_columns(OrderColumnsParams p, int64_t total) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= total) return;
  const int place = p.order[i % p.ordered];
  static_cast<E*>(p.y)[i] = place < 0 ? E(0) : static_cast<const E*>(p.x)[i / p.ordered * p.columns + place];
}

// f<T>() for the types of a weight.
template <typename F>
cudaError_t by_weight_type(DType dtype, const F& f) {
  if (dtype == DType::kF64) return cudaErrorInvalidValue;
  return by_float_type(dtype, [&]<typename T>() {
    if constexpr (sizeof(T) <= 4) f.template operator()<T>();
    return cudaGetLastError();
  });
}

}  // namespace

cudaError_t launch_pack_codes(const PackCodesParams& p, cudaStream_t stream) {
  const int64_t total = static_cast<int64_t>(p.weight.code_bytes() / 16);
  if (total == 0) return cudaSuccess;
  pack_codes<<<blocks_for(total, kThreads), kThreads, 0, stream>>>(p, total);
  return cudaGetLastError();
}

cudaError_t launch_pack_groups(const PackGroupsParams& p, cudaStream_t stream) {
  const int64_t total = static_cast<int64_t>(p.weight.group_values());
  if (total == 0) return cudaSuccess;
  return by_weight_type(p.weight.dtype, [&]<typename T>() {
    pack_groups<T><<<blocks_for(total, kThreads), kThreads, 0, stream>>>(p, total);
  });
}

cudaError_t launch_pack_zeros(const PackZerosParams& p, cudaStream_t stream) {
  const int64_t total = static_cast<int64_t>(p.weight.group_values());
  if (total == 0) return cudaSuccess;
  pack_zeros<<<blocks_for(total, kThreads), kThreads, 0, stream>>>(p, total);
  return cudaGetLastError();
}

cudaError_t launch_pack_float_zeros(const PackFloatZerosParams& p, cudaStream_t stream) {
  const int64_t total = static_cast<int64_t>(p.weight.group_values());
  if (total == 0) return cudaSuccess;
  return by_weight_type(p.weight.dtype, [&]<typename T>() {
    pack_float_zeros<T><<<blocks_for(total, kThreads), kThreads, 0, stream>>>(p, total);
  });
}

cudaError_t launch_unpack(const Int4Weight& w, void* y, cudaStream_t stream) {
  const int64_t total = int64_t{w.row_units()} * w.depth_units() * 32;
  if (total == 0) return cudaSuccess;
  return by_weight_type(w.dtype, [&]<typename T>() {
    const bool vectors = w.depth % 8 == 0 && reinterpret_cast<uintptr_t>(y) % 16 == 0;
    const unsigned blocks = blocks_for(total, kThreads);
    if (w.bits == 4)
      unpack<T, 4><<<blocks, kThreads, 0, stream>>>(w, static_cast<T*>(y), total, vectors);
    else
      unpack<T, 8><<<blocks, kThreads, 0, stream>>>(w, static_cast<T*>(y), total, vectors);
  });
}

cudaError_t launch_order_columns(const OrderColumnsParams& p, cudaStream_t stream) {
  const int64_t total = p.rows * p.ordered;
  if (total == 0) return cudaSuccess;
  const unsigned blocks = blocks_for(total, kThreads);
  if (p.element_bytes == 2)
    order_columns<uint16_t><<<blocks, kThreads, 0, stream>>>(p, total);
  else if (p.element_bytes == 4)
    order_columns<uint32_t><<<blocks, kThreads, 0, stream>>>(p, total);
  else
    return cudaErrorInvalidValue;
  return cudaGetLastError();
}

}  // namespace cuvil
