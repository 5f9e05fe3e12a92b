#include "device/by_type.cuh"
#include "device/index.cuh"
#include "device/vec.cuh"
#include "kernels/trilu.cuh"

namespace cuvil {
namespace {

constexpr int kThreads = 256;

template <typename T>
__global__ void __launch_bounds__(kThreads) trilu(TriluParams p, int64_t total) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= total) return;
  const int64_t column = i % p.columns, row = i / p.columns % p.rows;
  const bool keep = p.upper ? column - row >= p.k : column - row <= p.k;
  T v{};
  if (keep) v = static_cast<const T*>(p.x)[i];
  static_cast<T*>(p.y)[i] = v;
}

template <typename T>
cudaError_t launch(const TriluParams& p, int64_t total, cudaStream_t stream) {
  trilu<T><<<device::blocks_for(total, kThreads), kThreads, 0, stream>>>(p, total);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_trilu(const TriluParams& p, cudaStream_t stream) {
  const int64_t total = p.matrices * p.rows * p.columns;
  if (total == 0) return cudaSuccess;
  return device::by_element_size<8>(p.element_size, [&]<typename T>() { return launch<T>(p, total, stream); });
}

}  // namespace cuvil
