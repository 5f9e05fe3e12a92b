#include "device/activation.cuh"
#include "device/index.cuh"
#include "device/vec.cuh"
#include "kernels/bias_split_gelu.cuh"

namespace cuvil {
namespace {

using namespace device;

constexpr int kThreads = 256;

template <typename T, int V>
__global__ void __launch_bounds__(kThreads) bias_split_gelu(BiasSplitGeluParams p, int64_t total) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= total) return;
  const int64_t width = p.n / V, row = i / width, at = (i - row * width) * V;
  const T* x = static_cast<const T*>(p.x) + row * 2 * p.n + at;
  const T* bias = static_cast<const T*>(p.bias) + at;
  const Vec<T, V> left = load<T, V>(x), right = load<T, V>(x + p.n);
  const Vec<T, V> left_bias = load<T, V>(bias), right_bias = load<T, V>(bias + p.n);
  Vec<T, V> y;
#pragma unroll
  for (int k = 0; k < V; ++k) {
    const float a = to_compute(left[k]) + to_compute(left_bias[k]);
    const float b = to_compute(right[k]) + to_compute(right_bias[k]);
    y[k] = from_compute<T>(a * gelu(b));
  }
  store<T, V>(static_cast<T*>(p.y) + row * p.n + at, y);
}

template <typename T>
cudaError_t launch(const BiasSplitGeluParams& p, cudaStream_t stream) {
  constexpr int V = kVec16<T>;
  const uintptr_t addresses =
      reinterpret_cast<uintptr_t>(p.x) | reinterpret_cast<uintptr_t>(p.bias) | reinterpret_cast<uintptr_t>(p.y);
  if (p.n % V == 0 && addresses % 16 == 0) {
    const int64_t total = p.rows * (p.n / V);
    bias_split_gelu<T, V><<<blocks_for(total, kThreads), kThreads, 0, stream>>>(p, total);
  } else {
    const int64_t total = p.rows * p.n;
    bias_split_gelu<T, 1><<<blocks_for(total, kThreads), kThreads, 0, stream>>>(p, total);
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_bias_split_gelu(const BiasSplitGeluParams& p, cudaStream_t stream) {
  if (p.rows * p.n == 0) return cudaSuccess;
  switch (p.dtype) {
    case DType::kF32:
      return launch<float>(p, stream);
    case DType::kF16:
      return launch<__half>(p, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace cuvil
