// Writes one value along a diagonal.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace cuvil {

// output[first + i * step] = the value, for i in [0, count).
struct DiagonalParams {
  void* output;
  int64_t first;
  int64_t step;
  int64_t count;
  int element_size;  // 1, 2, 4 or 8 bytes
  uint64_t bits;     // the value, in the low bytes
};

cudaError_t launch_diagonal(const DiagonalParams& params, cudaStream_t stream);

}  // namespace cuvil
