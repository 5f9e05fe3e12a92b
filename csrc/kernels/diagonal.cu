#include "device/index.cuh"
#include "kernels/diagonal.cuh"

namespace cuvil {
namespace {

constexpr int kThreads = 256;

template <typename T>
__global__ void __launch_bounds__(kThreads) diagonal(DiagonalParams p) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < p.count) static_cast<T*>(p.output)[p.first + i * p.step] = static_cast<T>(p.bits);
}

template <typename T>
cudaError_t launch(const DiagonalParams& p, cudaStream_t stream) {
  diagonal<T><<<device::blocks_for(p.count, kThreads), kThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_diagonal(const DiagonalParams& p, cudaStream_t stream) {
  if (p.count <= 0) return cudaSuccess;
  switch (p.element_size) {
    case 1:
      return launch<uint8_t>(p, stream);
    case 2:
      return launch<uint16_t>(p, stream);
    case 4:
      return launch<uint32_t>(p, stream);
    case 8:
      return launch<uint64_t>(p, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace cuvil
