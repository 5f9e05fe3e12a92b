#include "device/by_type.cuh"
#include "device/index.cuh"
#include "kernels/affine_grid.cuh"

namespace cuvil {
namespace {

constexpr int kThreads = 256;

// The place of element i of n. A single one with align_corners is at the end, as in ONNX Runtime.
template <typename C>
__device__ __forceinline__ C place(int64_t i, int64_t n, bool align_corners) {
  if (!align_corners) return static_cast<C>(2 * i + 1) / static_cast<C>(n) - 1;
  return n == 1 ? C{1} : static_cast<C>(2 * i) / static_cast<C>(n - 1) - 1;
}

template <typename T>
__global__ void __launch_bounds__(kThreads) affine_grid(const AffineGridParams p, int64_t total) {
  using C = device::Compute<T>;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= total) return;
  int64_t row = device::quotient(i, p.width);
  const int64_t w = i - row * p.width;
  const int64_t plane = device::quotient(row, p.height), h = row - plane * p.height;
  const int64_t n = device::quotient(plane, p.depth), d = plane - n * p.depth;
  const C at[3] = {place<C>(w, p.width, p.align_corners), place<C>(h, p.height, p.align_corners),
                   place<C>(d, p.depth, p.align_corners)};
  const T* theta = static_cast<const T*>(p.theta) + n * p.rank * (p.rank + 1);
  T* y = static_cast<T*>(p.y) + i * p.rank;
  for (int r = 0; r < p.rank; ++r) {
    C sum = 0;
#pragma unroll
    for (int c = 0; c < 3; ++c) {
      if (c < p.rank) sum += device::to_compute(theta[r * (p.rank + 1) + c]) * at[c];
    }
    y[r] = device::from_compute<T>(sum + device::to_compute(theta[r * (p.rank + 1) + p.rank]));
  }
}

}  // namespace

cudaError_t launch_affine_grid(const AffineGridParams& p, cudaStream_t stream) {
  const int64_t total = p.batch * p.depth * p.height * p.width;
  if (total == 0) return cudaSuccess;
  if (total > int64_t{kThreads} * INT32_MAX) return cudaErrorInvalidValue;
  return device::by_float_type(p.dtype, [&]<typename T>() {
    affine_grid<T><<<device::blocks_for(total, kThreads), kThreads, 0, stream>>>(p, total);
    return cudaGetLastError();
  });
}

}  // namespace cuvil
