#include "device/by_type.cuh"
#include "device/index.cuh"
#include "device/vec.cuh"
#include "kernels/reverse_sequence.cuh"

namespace cuvil {
namespace {

constexpr int kThreads = 256;

template <typename T>
__global__ void __launch_bounds__(kThreads) reverse_sequence(ReverseSequenceParams p, int64_t total) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= total) return;
  const int64_t step_of_first = p.time_first ? p.batch : p.time;
  const int64_t row = device::quotient(i, p.inner), column = i - row * p.inner;
  const int64_t first = device::quotient(row, step_of_first), second = row - first * step_of_first;
  const int64_t t = p.time_first ? first : second, b = p.time_first ? second : first;
  int64_t length = p.lengths[b];
  if (length < 0 || length > p.time) {
    if (p.out_of_range) *p.out_of_range = 1;
    length = 0;
  }
  const int64_t from = t < length ? length - 1 - t : t;
  const int64_t source = p.time_first ? from * p.batch + b : b * p.time + from;
  static_cast<T*>(p.y)[i] = static_cast<const T*>(p.x)[source * p.inner + column];
}

template <typename T>
cudaError_t launch(const ReverseSequenceParams& p, int64_t total, cudaStream_t stream) {
  reverse_sequence<T><<<device::blocks_for(total, kThreads), kThreads, 0, stream>>>(p, total);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_reverse_sequence(const ReverseSequenceParams& p, cudaStream_t stream) {
  const int64_t total = p.time * p.batch * p.inner;
  if (total == 0) return cudaSuccess;
  return device::by_element_size<16>(p.element_size, [&]<typename T>() { return launch<T>(p, total, stream); });
}

}  // namespace cuvil
