#include "device/index.cuh"
#include "device/vec.cuh"
#include "kernels/scatter.cuh"

namespace cuvil {
namespace {

constexpr int kThreads = 256;

template <typename T>
__global__ void __launch_bounds__(kThreads) scatter_elements(ScatterElementsParams p, int64_t total) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= total) return;
  int64_t offset = 0, rest = i;
  for (int d = p.rank - 1; d >= 0; --d) {
    const int64_t q = rest / p.extent[d], r = rest - q * p.extent[d];
    if (d != p.axis) offset += r * p.output_stride[d];
    rest = q;
  }
  const int64_t index =
      device::resolve_index(device::read_index(p.indices, p.indices64, i), p.axis_extent, p.out_of_range);
  if (index >= 0)
    static_cast<T*>(p.output)[offset + index * p.output_stride[p.axis]] = static_cast<const T*>(p.updates)[i];
}

template <typename T>
__global__ void __launch_bounds__(kThreads) scatter_nd(ScatterNDParams p, int64_t total) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= total) return;
  const int64_t tuple = i / p.inner;
  int64_t offset = i - tuple * p.inner;
  bool inside = true;
  for (int d = 0; d < p.depth; ++d) {
    const int64_t index = device::resolve_index(p.indices[tuple * p.depth + d], p.extent[d], p.out_of_range);
    inside = inside && index >= 0;
    offset += index * p.stride[d];
  }
  if (inside) static_cast<T*>(p.output)[offset] = static_cast<const T*>(p.updates)[i];
}

}  // namespace

cudaError_t launch_scatter_elements(const ScatterElementsParams& p, cudaStream_t stream) {
  int64_t total = 1;
  for (int d = 0; d < p.rank; ++d) total *= p.extent[d];
  if (total == 0) return cudaSuccess;
  const unsigned blocks = device::blocks_for(total, kThreads);
  switch (p.element_size) {
    case 1:
      scatter_elements<device::Uint<1>><<<blocks, kThreads, 0, stream>>>(p, total);
      break;
    case 2:
      scatter_elements<device::Uint<2>><<<blocks, kThreads, 0, stream>>>(p, total);
      break;
    case 4:
      scatter_elements<device::Uint<4>><<<blocks, kThreads, 0, stream>>>(p, total);
      break;
    case 8:
      scatter_elements<device::Uint<8>><<<blocks, kThreads, 0, stream>>>(p, total);
      break;
    default:
      return cudaErrorInvalidValue;
  }
  return cudaGetLastError();
}

cudaError_t launch_scatter_nd(const ScatterNDParams& p, cudaStream_t stream) {
  const int64_t total = p.tuples * p.inner;
  if (total == 0) return cudaSuccess;
  const unsigned blocks = device::blocks_for(total, kThreads);
  switch (p.element_size) {
    case 1:
      scatter_nd<device::Uint<1>><<<blocks, kThreads, 0, stream>>>(p, total);
      break;
    case 2:
      scatter_nd<device::Uint<2>><<<blocks, kThreads, 0, stream>>>(p, total);
      break;
    case 4:
      scatter_nd<device::Uint<4>><<<blocks, kThreads, 0, stream>>>(p, total);
      break;
    case 8:
      scatter_nd<device::Uint<8>><<<blocks, kThreads, 0, stream>>>(p, total);
      break;
    default:
      return cudaErrorInvalidValue;
  }
  return cudaGetLastError();
}

}  // namespace cuvil
