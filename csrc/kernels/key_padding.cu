#include "device/attention_mask.cuh"
#include "device/by_type.cuh"
#include "device/index.cuh"
#include "kernels/key_padding.cuh"

namespace cuvil {
namespace {

constexpr int kThreads = 256;

template <typename T>
__global__ void __launch_bounds__(kThreads) key_padding(const KeyPaddingParams p, int64_t total) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= total) return;
  int64_t rest = i, at[4];
#pragma unroll
  for (int d = 3; d >= 0; --d) {
    const int64_t above = device::quotient(rest, p.shape[d]);
    at[d] = rest - above * p.shape[d];
    rest = above;
  }
  int64_t mask = 0, bias = 0;
#pragma unroll
  for (int d = 0; d < 4; ++d) {
    mask += at[d] * p.mask_strides[d];
    bias += at[d] * p.bias_strides[d];
  }
  const bool seen = p.lengths ? at[3] < p.mask[at[0]] : p.mask[mask] != 0;
  const float add = p.bias ? device::mask_value<T>(p.bias, p.bias_dtype, bias) : 0.f;
  p.y[i] = seen ? add : add + p.hidden;
}

}  // namespace

cudaError_t launch_key_padding(const KeyPaddingParams& p, cudaStream_t stream) {
  const int64_t total = p.shape[0] * p.shape[1] * p.shape[2] * p.shape[3];
  if (total == 0) return cudaSuccess;
  if (total > int64_t{kThreads} * INT32_MAX) return cudaErrorInvalidValue;
  return device::by_float_type(p.bias_dtype, [&]<typename T>() {
    if constexpr (sizeof(T) <= 4) {
      key_padding<T><<<device::blocks_for(total, kThreads), kThreads, 0, stream>>>(p, total);
      return cudaGetLastError();
    } else {
      return cudaErrorInvalidValue;
    }
  });
}

}  // namespace cuvil
