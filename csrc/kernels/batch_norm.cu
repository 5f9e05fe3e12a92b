#include "device/by_type.cuh"
#include "device/index.cuh"
#include "device/vec.cuh"
#include "kernels/batch_norm.cuh"

namespace cuvil {
namespace {

using device::Compute;

constexpr int kThreads = 256;

template <typename C>
__device__ __forceinline__ C statistic(const void* p, DType dtype, int64_t i) {
  switch (dtype) {
    case DType::kF16:
      return device::to_compute(static_cast<const __half*>(p)[i]);
    case DType::kBF16:
      return device::to_compute(static_cast<const __nv_bfloat16*>(p)[i]);
    case DType::kF64:
      return static_cast<C>(static_cast<const double*>(p)[i]);
    default:
      return static_cast<const float*>(p)[i];
  }
}

// A block works on one plane (one image's channel) at a time: the statistics are uniform in it.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads) batch_norm_kernel(BatchNormParams p) {
  using C = Compute<T>;
  const int64_t planes = p.n * p.channels, vectors = p.inner / N;
  for (int64_t plane = blockIdx.x; plane < planes; plane += gridDim.x) {
    const int64_t c = plane % p.channels;
    const C mean = statistic<C>(p.mean, p.mean_dtype, c);
    const C deviation = sqrt(statistic<C>(p.variance, p.mean_dtype, c) + C(p.epsilon));
    const C scale = statistic<C>(p.scale, p.scale_dtype, c), bias = statistic<C>(p.bias, p.scale_dtype, c);
    const T* const x = static_cast<const T*>(p.x) + plane * p.inner;
    T* const y = static_cast<T*>(p.y) + plane * p.inner;
    for (int64_t i = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x; i < vectors;
         i += static_cast<int64_t>(gridDim.y) * kThreads) {
      auto v = device::load<T, N>(x + i * N);
#pragma unroll
      for (int k = 0; k < N; ++k)
        v[k] = device::from_compute<T>((device::to_compute(v[k]) - mean) / deviation * scale + bias);
      device::store(y + i * N, v);
    }
  }
}

template <typename T, int N>
cudaError_t launch(const BatchNormParams& p, cudaStream_t stream) {
  constexpr int64_t kMaxPlanes = 1 << 20;
  const int64_t planes = p.n * p.channels;
  const unsigned across = device::blocks_for(p.inner / N, kThreads);
  const dim3 grid(static_cast<unsigned>(planes < kMaxPlanes ? planes : kMaxPlanes), across < 64 ? across : 64);
  batch_norm_kernel<T, N><<<grid, kThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

template <typename T>
cudaError_t dispatch(const BatchNormParams& p, cudaStream_t stream) {
  constexpr int N = device::kVec16<T>;
  const auto aligned = [](const void* q) { return reinterpret_cast<uintptr_t>(q) % 16 == 0; };
  if (p.inner % N == 0 && aligned(p.x) && aligned(p.y)) return launch<T, N>(p, stream);
  return launch<T, 1>(p, stream);
}

}  // namespace

cudaError_t launch_batch_norm(const BatchNormParams& p, cudaStream_t stream) {
  if (p.n * p.channels * p.inner == 0) return cudaSuccess;
  return device::by_float_type(p.dtype, [&]<typename T>() { return dispatch<T>(p, stream); });
}

}  // namespace cuvil
