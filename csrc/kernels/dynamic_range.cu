#include "device/quant.cuh"
#include "device/reduce.cuh"
#include "kernels/quantize.cuh"

namespace cuvil {
namespace {

using namespace device;

constexpr int kThreads = 256;

// Smallest and largest element, a pair a block. NaNs are passed over.
__global__ void __launch_bounds__(kThreads) partial_range(DynamicRangeParams p) {
  __shared__ float shared[32];
  float low = 0, high = 0;  // the range holds 0
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < p.count;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    low = fminf(low, p.x[i]);
    high = fmaxf(high, p.x[i]);
  }
  low = block_reduce(low, Min(), 0.f, shared);
  high = block_reduce(high, Max(), 0.f, shared);
  if (threadIdx.x == 0) p.partial[2 * blockIdx.x] = low, p.partial[2 * blockIdx.x + 1] = high;
}

__global__ void __launch_bounds__(kThreads) whole_range(DynamicRangeParams p, int blocks) {
  __shared__ float shared[32];
  const bool mine = static_cast<int>(threadIdx.x) < blocks;
  const float low = block_reduce(mine ? p.partial[2 * threadIdx.x] : 0.f, Min(), 0.f, shared);
  const float high = block_reduce(mine ? p.partial[2 * threadIdx.x + 1] : 0.f, Max(), 0.f, shared);
  if (threadIdx.x != 0) return;
  const float scale = high == low ? 1.f : __fdiv_rn(__fsub_rn(high, low), 255.f);
  *p.scale = scale;
  *p.zero_point = static_cast<uint8_t>(quantize_code(__fdiv_rn(-low, scale), 0, 0, 255));
}

}  // namespace

cudaError_t launch_dynamic_range(const DynamicRangeParams& p, cudaStream_t stream) {
  static_assert(kRangeBlocks <= kThreads, "a thread reads each pair");
  const int64_t wanted = (p.count + kThreads * 8 - 1) / (kThreads * 8);
  const int blocks = static_cast<int>(wanted < kRangeBlocks ? wanted : kRangeBlocks);
  partial_range<<<blocks, kThreads, 0, stream>>>(p);
  whole_range<<<1, kThreads, 0, stream>>>(p, blocks);
  return cudaGetLastError();
}

}  // namespace cuvil
