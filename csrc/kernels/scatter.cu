#include "device/by_type.cuh"
#include "device/vec.cuh"
#include "kernels/scatter_place.cuh"

namespace cuvil {
namespace {

constexpr int kThreads = 256;

template <typename T, typename Params>
__global__ void __launch_bounds__(kThreads) scatter(Params p, int64_t total) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= total) return;
  const int64_t place = device::scatter_place(p, i);
  if (place >= 0) static_cast<T*>(p.output)[place] = static_cast<const T*>(p.updates)[i];
}

template <typename Params>
cudaError_t launch(const Params& p, int64_t total, cudaStream_t stream) {
  if (total == 0) return cudaSuccess;
  const unsigned blocks = device::blocks_for(total, kThreads);
  return device::by_element_size<8>(p.element_size, [&]<typename T>() {
    scatter<T><<<blocks, kThreads, 0, stream>>>(p, total);
    return cudaGetLastError();
  });
}

}  // namespace

cudaError_t launch_scatter_elements(const ScatterElementsParams& p, cudaStream_t stream) {
  return launch(p, p.updates_count(), stream);
}

cudaError_t launch_scatter_nd(const ScatterNDParams& p, cudaStream_t stream) {
  return launch(p, p.updates_count(), stream);
}

}  // namespace cuvil
