// Device work of the test ops. Two implementations: test_kernels.cu for a GPU, fake/cuda.cc for tests without one.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace cuvil::test {

enum class Work { kTwice, kPlus, kFault, kSpin };

// y[i] = 2 a[i] | a[i] + b[i] | an illegal write | a[i], after spinning long enough for a race to show.
void enqueue(Work work, const float* a, const float* b, float* y, int64_t n, cudaStream_t stream);

}  // namespace cuvil::test
