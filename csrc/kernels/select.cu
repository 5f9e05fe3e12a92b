#include <thrust/iterator/counting_iterator.h>

#include <cub/device/device_select.cuh>

#include "device/index.cuh"
#include "device/vec.cuh"
#include "kernels/select.cuh"

namespace cuvil {
namespace {

constexpr int kThreads = 256;

// Any bit of `mask` set: all bits of an integer, all but the sign of a float.
template <typename T>
struct NotZero {
  const T* x;
  T mask;
  __device__ bool operator()(int64_t i) const { return (x[i] & mask) != 0; }
};

template <typename T>
cudaError_t select(const SelectParams& p, void* scratch, size_t* bytes, cudaStream_t stream) {
  const T all = static_cast<T>(~T{0});
  const T mask = is_float(p.dtype) ? static_cast<T>(all >> 1) : all;
  return cub::DeviceSelect::If(scratch, *bytes, thrust::counting_iterator<int64_t>(0), p.indices, p.count, p.n,
                               NotZero<T>{static_cast<const T*>(p.x), mask}, stream);
}

cudaError_t by_size(const SelectParams& p, void* scratch, size_t* bytes, cudaStream_t stream) {
  switch (size_of(p.dtype)) {
    case 1:
      return select<uint8_t>(p, scratch, bytes, stream);
    case 2:
      return select<uint16_t>(p, scratch, bytes, stream);
    case 4:
      return select<uint32_t>(p, scratch, bytes, stream);
    case 8:
      return select<uint64_t>(p, scratch, bytes, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

// The most that any of the four types wants; asked without memory, CUB tells instead of working.
size_t select_scratch_bytes(int64_t n) {
  size_t most = 0;
  for (const DType t : {DType::kU8, DType::kU16, DType::kU32, DType::kU64}) {
    size_t bytes = 0;
    if (by_size({.dtype = t, .n = n}, nullptr, &bytes, nullptr) == cudaSuccess) most = bytes > most ? bytes : most;
  }
  return most;
}

namespace {

__global__ void __launch_bounds__(kThreads) coordinates(CoordinatesParams p) {
  const int64_t j = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (j >= p.count) return;
  int64_t rest = p.indices[j];
  for (int d = p.rank - 1; d >= 0; --d) {
    const int64_t above = device::quotient(rest, p.shape[d]);
    p.y[d * p.count + j] = rest - above * p.shape[d];
    rest = above;
  }
}

}  // namespace

cudaError_t launch_select(const SelectParams& p, void* scratch, cudaStream_t stream) {
  size_t bytes = select_scratch_bytes(p.n);
  return by_size(p, scratch, &bytes, stream);
}

cudaError_t launch_coordinates(const CoordinatesParams& p, cudaStream_t stream) {
  if (p.count == 0) return cudaSuccess;
  coordinates<<<device::blocks_for(p.count, kThreads), kThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace cuvil
