#include "device/by_type.cuh"
#include "device/index.cuh"
#include "device/vec.cuh"
#include "kernels/col2im.cuh"

namespace cuvil {
namespace {

using device::Compute;

constexpr int kThreads = 256;

// The block that covers place `at` of the padded image with its element k; -1 when none does.
__device__ __forceinline__ int block_of(const Col2ImParams& p, int d, int at, int k) {
  const int start = at - k * p.dilation[d];
  if (start < 0 || start % p.stride[d] != 0) return -1;
  const int block = start / p.stride[d];
  return block < p.count[d] ? block : -1;
}

// A thread an element of the image: the order of its sum is fixed.
template <typename T>
__global__ void __launch_bounds__(kThreads) col2im(Col2ImParams p, int64_t total) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= total) return;
  int64_t rest = i;
  int at[3];
#pragma unroll
  for (int d = 2; d >= 0; --d) {
    const int64_t q = device::quotient(rest, p.image[d]);
    at[d] = static_cast<int>(rest - q * p.image[d]) + p.pad[d];
    rest = q;
  }
  const int64_t blocks = static_cast<int64_t>(p.count[0]) * p.count[1] * p.count[2];
  const int64_t elements = static_cast<int64_t>(p.block[0]) * p.block[1] * p.block[2];
  const T* const x = static_cast<const T*>(p.x) + rest * elements * blocks;
  Compute<T> sum = 0;
  for (int k0 = 0; k0 < p.block[0]; ++k0) {
    const int b0 = block_of(p, 0, at[0], k0);
    if (b0 < 0) continue;
    for (int k1 = 0; k1 < p.block[1]; ++k1) {
      const int b1 = block_of(p, 1, at[1], k1);
      if (b1 < 0) continue;
      for (int k2 = 0; k2 < p.block[2]; ++k2) {
        const int b2 = block_of(p, 2, at[2], k2);
        if (b2 < 0) continue;
        const int64_t element = (static_cast<int64_t>(k0) * p.block[1] + k1) * p.block[2] + k2;
        const int64_t block = (static_cast<int64_t>(b0) * p.count[1] + b1) * p.count[2] + b2;
        sum += device::to_compute(x[element * blocks + block]);
      }
    }
  }
  static_cast<T*>(p.y)[i] = device::from_compute<T>(sum);
}

}  // namespace

cudaError_t launch_col2im(const Col2ImParams& p, cudaStream_t stream) {
  const int64_t total = p.planes * p.image[0] * p.image[1] * p.image[2];
  if (total == 0) return cudaSuccess;
  return device::by_float_type(p.dtype, [&]<typename T>() {
    col2im<T><<<device::blocks_for(total, kThreads), kThreads, 0, stream>>>(p, total);
    return cudaGetLastError();
  });
}

}  // namespace cuvil
