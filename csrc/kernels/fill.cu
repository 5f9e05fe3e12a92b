#include "device/index.cuh"
#include "device/vec.cuh"
#include "kernels/fill.cuh"

namespace cuvil {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) fill(char* output, int64_t bytes, uint4 pattern) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * 16;
  if (i + 16 <= bytes && reinterpret_cast<uintptr_t>(output) % 16 == 0) {
    *reinterpret_cast<uint4*>(output + i) = pattern;
  } else {
    // The pattern repeats every 1, 2, 4 or 8 bytes, and i is a multiple of 16.
    for (int64_t k = i; k < bytes && k < i + 16; ++k) output[k] = reinterpret_cast<const char*>(&pattern)[k - i];
  }
}

__device__ __forceinline__ float step(float start, float delta, int64_t i) {
  return __fadd_rn(start, __fmul_rn(static_cast<float>(i), delta));
}
__device__ __forceinline__ double step(double start, double delta, int64_t i) {
  return __dadd_rn(start, __dmul_rn(static_cast<double>(i), delta));
}
template <typename T>
__device__ __forceinline__ T step(T start, T delta, int64_t i) {
  return static_cast<T>(start + i * delta);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) range(T* output, int64_t count, T start, T delta) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) output[i] = step(start, delta, i);
}

template <typename T, typename Scalar>
cudaError_t run(const RangeParams& p, Scalar start, Scalar delta, cudaStream_t stream) {
  range<T><<<device::blocks_for(p.count, kThreads), kThreads, 0, stream>>>(
      static_cast<T*>(p.output), p.count, static_cast<T>(start), static_cast<T>(delta));
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_fill(const FillParams& p, cudaStream_t stream) {
  if (p.count == 0) return cudaSuccess;
  uint64_t word = p.bits;
  for (int size = p.element_size; size < 8; size *= 2) {
    word &= (uint64_t{1} << (8 * size)) - 1;
    word |= word << (8 * size);
  }
  const uint4 pattern = {static_cast<uint32_t>(word), static_cast<uint32_t>(word >> 32), static_cast<uint32_t>(word),
                         static_cast<uint32_t>(word >> 32)};
  const int64_t bytes = p.count * p.element_size;
  fill<<<device::blocks_for((bytes + 15) / 16, kThreads), kThreads, 0, stream>>>(static_cast<char*>(p.output), bytes,
                                                                                 pattern);
  return cudaGetLastError();
}

cudaError_t launch_range(const RangeParams& p, cudaStream_t stream) {
  if (p.count == 0) return cudaSuccess;
  switch (p.dtype) {
    case DType::kF32:
      return run<float>(p, p.start, p.delta, stream);
    case DType::kF64:
      return run<double>(p, p.start, p.delta, stream);
    case DType::kI16:
      return run<int16_t>(p, p.start_int, p.delta_int, stream);
    case DType::kI32:
      return run<int32_t>(p, p.start_int, p.delta_int, stream);
    case DType::kI64:
      return run<int64_t>(p, p.start_int, p.delta_int, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace cuvil
