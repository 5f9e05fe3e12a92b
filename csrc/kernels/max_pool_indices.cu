// Maxima with their positions, and maxima of 8-bit integers: what pool.cu leaves out, channels first.
#include <type_traits>

#include "device/index.cuh"
#include "device/pool_reduce.cuh"
#include "device/vec.cuh"
#include "kernels/pool.cuh"

namespace cuvil {
namespace {

constexpr int kThreads = 256;

template <typename T>
__device__ __forceinline__ T lowest() {
  if constexpr (std::is_integral_v<T>)
    return std::is_signed_v<T> ? T(-128) : T(0);
  else
    return device::from_compute<T>(device::Compute<T>(device::Lowest<T>::value));
}

// A thread an element of y. Of equal values the first is taken; a NaN stays, as in the other kernels.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    max_pool_indices(PoolParams p, int64_t* indices, bool column_major, int64_t total) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= total) return;
  int64_t plane = i;
  int start[3];
#pragma unroll
  for (int d = 2; d >= 0; --d) {
    const int64_t q = device::quotient(plane, p.out[d]);
    start[d] = static_cast<int>(plane - q * p.out[d]) * p.stride[d] - p.pad_begin[d];
    plane = q;
  }
  const int64_t pixels = static_cast<int64_t>(p.in[0]) * p.in[1] * p.in[2], base = plane * pixels;
  const T* const x = static_cast<const T*>(p.x) + base;
  T best = lowest<T>();
  int64_t place = -1;
  for (int k0 = 0; k0 < p.kernel[0]; ++k0) {
    const int d0 = start[0] + k0 * p.dilation[0];
    if (static_cast<unsigned>(d0) >= static_cast<unsigned>(p.in[0])) continue;
    for (int k1 = 0; k1 < p.kernel[1]; ++k1) {
      const int d1 = start[1] + k1 * p.dilation[1];
      if (static_cast<unsigned>(d1) >= static_cast<unsigned>(p.in[1])) continue;
      for (int k2 = 0; k2 < p.kernel[2]; ++k2) {
        const int d2 = start[2] + k2 * p.dilation[2];
        if (static_cast<unsigned>(d2) >= static_cast<unsigned>(p.in[2])) continue;
        const T v = x[(static_cast<int64_t>(d0) * p.in[1] + d1) * p.in[2] + d2];
        const auto a = device::to_compute(best), b = device::to_compute(v);
        if (place >= 0 && !(b > a) && (b == b || a != a)) continue;
        best = v;
        place = base + (column_major ? d0 + (d1 + static_cast<int64_t>(d2) * p.in[1]) * p.in[0]
                                     : (static_cast<int64_t>(d0) * p.in[1] + d1) * p.in[2] + d2);
      }
    }
  }
  static_cast<T*>(p.y)[i] = best;
  if (indices) indices[i] = place;
}

template <typename T>
cudaError_t launch(const PoolParams& p, int64_t* indices, bool column_major, int64_t total, cudaStream_t stream) {
  max_pool_indices<T><<<device::blocks_for(total, kThreads), kThreads, 0, stream>>>(p, indices, column_major, total);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_max_pool_indices(const PoolParams& p, int64_t* indices, bool column_major, cudaStream_t stream) {
  const int64_t total = p.n * p.c * p.out[0] * p.out[1] * p.out[2];
  if (p.channels_last) return cudaErrorInvalidValue;
  if (total == 0) return cudaSuccess;
  switch (p.dtype) {
    case DType::kF32:
      return launch<float>(p, indices, column_major, total, stream);
    case DType::kF16:
      return launch<__half>(p, indices, column_major, total, stream);
    case DType::kBF16:
      return launch<__nv_bfloat16>(p, indices, column_major, total, stream);
    case DType::kF64:
      return launch<double>(p, indices, column_major, total, stream);
    case DType::kI8:
      return launch<int8_t>(p, indices, column_major, total, stream);
    case DType::kU8:
      return launch<uint8_t>(p, indices, column_major, total, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace cuvil
