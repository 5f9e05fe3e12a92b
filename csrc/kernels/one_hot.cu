#include "device/index.cuh"
#include "device/vec.cuh"
#include "kernels/one_hot.cuh"

namespace cuvil {
namespace {

constexpr int kThreads = 256;

template <typename Index, typename T>
__global__ void __launch_bounds__(kThreads) one_hot(OneHotParams p, int64_t total) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= total) return;
  const int64_t column = i % p.inner, rest = i / p.inner, level = rest % p.depth, row = rest / p.depth;
  int64_t index = static_cast<int64_t>(static_cast<const Index*>(p.indices)[row * p.inner + column]);
  if (index < 0) index += p.depth;
  static_cast<T*>(p.y)[i] = static_cast<const T*>(p.values)[index == level ? 1 : 0];
}

template <typename Index>
cudaError_t launch(const OneHotParams& p, int64_t total, cudaStream_t stream) {
  const unsigned blocks = device::blocks_for(total, kThreads);
  switch (p.element_size) {
    case 1:
      one_hot<Index, device::Uint<1>><<<blocks, kThreads, 0, stream>>>(p, total);
      break;
    case 2:
      one_hot<Index, device::Uint<2>><<<blocks, kThreads, 0, stream>>>(p, total);
      break;
    case 4:
      one_hot<Index, device::Uint<4>><<<blocks, kThreads, 0, stream>>>(p, total);
      break;
    case 8:
      one_hot<Index, device::Uint<8>><<<blocks, kThreads, 0, stream>>>(p, total);
      break;
    default:
      return cudaErrorInvalidValue;
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_one_hot(const OneHotParams& p, cudaStream_t stream) {
  const int64_t total = p.outer * p.depth * p.inner;
  if (total == 0) return cudaSuccess;
  switch (p.index_dtype) {
    case DType::kI32:
      return launch<int32_t>(p, total, stream);
    case DType::kI64:
      return launch<int64_t>(p, total, stream);
    case DType::kF32:
      return launch<float>(p, total, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace cuvil
