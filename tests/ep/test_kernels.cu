#include "test_kernels.h"

namespace cuvil::test {
namespace {

__global__ void run(Work work, const float* a, const float* b, float* y, int64_t n) {
  if (work == Work::kSpin) {
    const long long start = clock64();
    while (clock64() - start < 2000000) {
    }
  }
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n; i += int64_t{gridDim.x} * blockDim.x) {
    switch (work) {
      case Work::kTwice:
        y[i] = 2 * a[i];
        break;
      case Work::kPlus:
        y[i] = a[i] + b[i];
        break;
      case Work::kSpin:
        y[i] = a[i];
        break;
      case Work::kFault:
        reinterpret_cast<float*>(16)[i] = a[i];
        break;
    }
  }
}

}  // namespace

void enqueue(Work work, const float* a, const float* b, float* y, int64_t n, cudaStream_t stream) {
  run<<<64, 256, 0, stream>>>(work, a, b, y, n);
}

}  // namespace cuvil::test
