// Keeps the upper or the lower triangle of matrices; the rest is zero.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace cuvil {

// Element (row, column) is kept when column - row >= k (upper), or <= k.
struct TriluParams {
  const void* x;
  void* y;           // may be x
  int element_size;  // 1, 2, 4 or 8 bytes
  int64_t matrices;
  int64_t rows;
  int64_t columns;
  int64_t k;
  bool upper;
};

cudaError_t launch_trilu(const TriluParams& params, cudaStream_t stream);

}  // namespace cuvil
