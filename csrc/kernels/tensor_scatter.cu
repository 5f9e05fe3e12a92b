#include "device/index.cuh"
#include "device/vec.cuh"
#include "kernels/tensor_scatter.cuh"

namespace cuvil {
namespace {

constexpr int kThreads = 256;

// T moves `sizeof(T)` bytes; `row` counts T.
template <typename T>
__global__ void __launch_bounds__(kThreads) scatter(TensorScatterParams p, int64_t row, int64_t total) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= total) return;
  int64_t rest = device::quotient(i, row);
  const int64_t column = i - rest * row;
  const int64_t plane = device::quotient(rest, p.steps), step = rest - plane * p.steps;  // plane: of all samples
  const int64_t start = p.first ? p.first[device::quotient(plane, p.planes)] : 0;
  int64_t place = start + step;
  const bool valid = start >= 0 && (p.circular ? start < p.capacity : place < p.capacity);
  if (!valid) {
    if (p.out_of_range) *p.out_of_range = 1;
    return;
  }
  if (place >= p.capacity) place -= p.capacity;
  static_cast<T*>(p.y)[(plane * p.capacity + place) * row + column] = static_cast<const T*>(p.update)[i];
}

template <int Bytes>
cudaError_t launch(const TensorScatterParams& p, cudaStream_t stream) {
  const int64_t row = p.row_bytes / Bytes, total = p.batch * p.planes * p.steps * row;
  scatter<device::Uint<Bytes>><<<device::blocks_for(total, kThreads), kThreads, 0, stream>>>(p, row, total);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_tensor_scatter(const TensorScatterParams& p, cudaStream_t stream) {
  if (p.batch * p.planes * p.steps * p.row_bytes == 0) return cudaSuccess;
  const uintptr_t places =
      reinterpret_cast<uintptr_t>(p.update) | reinterpret_cast<uintptr_t>(p.y) | static_cast<uintptr_t>(p.row_bytes);
  if (places % 16 == 0) return launch<16>(p, stream);
  if (places % 8 == 0) return launch<8>(p, stream);
  if (places % 4 == 0) return launch<4>(p, stream);
  if (places % 2 == 0) return launch<2>(p, stream);
  return launch<1>(p, stream);
}

}  // namespace cuvil
