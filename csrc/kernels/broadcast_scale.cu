#include "device/by_type.cuh"
#include "device/index.cuh"
#include "device/vec.cuh"
#include "kernels/broadcast_scale.cuh"

namespace cuvil {
namespace {

constexpr int kThreads = 256;

template <typename T>
__global__ void __launch_bounds__(kThreads)
    broadcast_scale_kernel(T* __restrict__ y, const T* __restrict__ c, int64_t count, int64_t cols, int64_t stride_row,
                           int64_t stride_col, float scale) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  const int64_t row = i / cols, col = i - row * cols;
  const auto x = device::to_compute(c[row * stride_row + col * stride_col]);
  y[i] = device::from_compute<T>(x * static_cast<device::Compute<T>>(scale));
}

template <typename T>
cudaError_t launch(const BroadcastScaleParams& p, cudaStream_t stream) {
  const int64_t count = p.rows * p.cols;
  broadcast_scale_kernel<T><<<device::blocks_for(count, kThreads), kThreads, 0, stream>>>(
      static_cast<T*>(p.y), static_cast<const T*>(p.c), count, p.cols, p.stride_row, p.stride_col, p.scale);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_broadcast_scale(const BroadcastScaleParams& p, cudaStream_t stream) {
  if (p.rows * p.cols == 0) return cudaSuccess;
  return device::by_float_type(p.dtype, [&]<typename T>() { return launch<T>(p, stream); });
}

}  // namespace cuvil
