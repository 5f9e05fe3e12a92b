#include "device/by_type.cuh"
#include "device/index.cuh"
#include "device/pool_reduce.cuh"
#include "device/vec.cuh"
#include "kernels/pool.cuh"

namespace cuvil {
namespace {

using device::Compute;
using device::LpReduce;
using device::PoolReduce;

constexpr int kThreads = 256;

// One output position of N neighbouring channels (channels last) or one element (channels first) a thread: the host
// passes `outer` = n, `inner` = c / N for the first, n * c and 1 for the second.
template <typename T, int N, typename Reduce, typename Index>
__global__ void __launch_bounds__(kThreads) pool_kernel(PoolParams p, Index outer, Index inner) {
  Index i = static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x;
  const Index inner_at = i % inner;
  i /= inner;
  int at[3];
#pragma unroll
  for (int d = 2; d >= 0; --d) {
    at[d] = static_cast<int>(i % p.out[d]);
    i /= p.out[d];
  }
  if (i >= outer) return;
  int start[3], divisor = 1;
#pragma unroll
  for (int d = 0; d < 3; ++d) {
    start[d] = at[d] * p.stride[d] - p.pad_begin[d];
    // Kernel positions before the end of the (padded) input along this dimension; before its beginning there are none
    // when padding counts, as the first window starts at the padding's first element.
    const int end = p.in[d] + (p.count_include_pad ? p.pad_end[d] : 0);
    const int past = start[d] >= end ? 0 : (end - start[d] + p.dilation[d] - 1) / p.dilation[d];
    int inside = past < p.kernel[d] ? past : p.kernel[d];
    if (!p.count_include_pad && start[d] < 0) inside -= (-start[d] + p.dilation[d] - 1) / p.dilation[d];
    divisor *= inside > 0 ? inside : 0;
  }
  const T* const x = static_cast<const T*>(p.x);
  Reduce acc[N];
  for (int k0 = 0; k0 < p.kernel[0]; ++k0) {
    const int d0 = start[0] + k0 * p.dilation[0];
    if (static_cast<unsigned>(d0) >= static_cast<unsigned>(p.in[0])) continue;
    for (int k1 = 0; k1 < p.kernel[1]; ++k1) {
      const int d1 = start[1] + k1 * p.dilation[1];
      if (static_cast<unsigned>(d1) >= static_cast<unsigned>(p.in[1])) continue;
      for (int k2 = 0; k2 < p.kernel[2]; ++k2) {
        const int d2 = start[2] + k2 * p.dilation[2];
        if (static_cast<unsigned>(d2) >= static_cast<unsigned>(p.in[2])) continue;
        const Index position = ((i * p.in[0] + d0) * p.in[1] + d1) * p.in[2] + d2;
        const auto v = device::load<T, N>(x + (position * inner + inner_at) * N);
#pragma unroll
        for (int k = 0; k < N; ++k) acc[k].add(v[k], p.norm);
      }
    }
  }
  device::Vec<T, N> result;
#pragma unroll
  for (int k = 0; k < N; ++k) result[k] = acc[k].result(divisor, p.norm);
  const Index position = ((i * p.out[0] + at[0]) * p.out[1] + at[1]) * p.out[2] + at[2];
  device::store(static_cast<T*>(p.y) + (position * inner + inner_at) * N, result);
}

template <typename T, int N, typename Reduce>
cudaError_t launch(const PoolParams& p, cudaStream_t stream) {
  const int64_t outer = p.channels_last ? p.n : p.n * p.c, inner = p.channels_last ? p.c / N : 1;
  const int64_t out_pixels = int64_t{p.out[0]} * p.out[1] * p.out[2], in_pixels = int64_t{p.in[0]} * p.in[1] * p.in[2];
  const int64_t threads = outer * inner * out_pixels;
  if (threads == 0) return cudaSuccess;
  const unsigned blocks = device::blocks_for(threads, kThreads);
  // The last block computes indices past the end before it sees that they are: half the range leaves room for them.
  if (outer * inner * N * in_pixels <= device::kMaxIndex32 && threads * N <= device::kMaxIndex32)
    pool_kernel<T, N, Reduce, uint32_t>
        <<<blocks, kThreads, 0, stream>>>(p, static_cast<uint32_t>(outer), static_cast<uint32_t>(inner));
  else
    pool_kernel<T, N, Reduce, uint64_t>
        <<<blocks, kThreads, 0, stream>>>(p, static_cast<uint64_t>(outer), static_cast<uint64_t>(inner));
  return cudaGetLastError();
}

template <typename T, typename Reduce>
cudaError_t dispatch(const PoolParams& p, cudaStream_t stream) {
  constexpr int N = device::kVec16<T>;
  const auto aligned = [](const void* q) { return reinterpret_cast<uintptr_t>(q) % 16 == 0; };
  if (p.channels_last && p.c % N == 0 && aligned(p.x) && aligned(p.y)) return launch<T, N, Reduce>(p, stream);
  return launch<T, 1, Reduce>(p, stream);
}

}  // namespace

cudaError_t launch_pool(const PoolParams& p, cudaStream_t stream) {
  return device::by_float_type(p.dtype, [&]<typename T>() {
    if (p.max) return dispatch<T, PoolReduce<T, true>>(p, stream);
    if (p.norm == 0) return dispatch<T, PoolReduce<T, false>>(p, stream);
    return dispatch<T, LpReduce<T>>(p, stream);
  });
}

}  // namespace cuvil
