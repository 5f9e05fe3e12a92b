// Determinants of square matrices.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"

namespace cuvil {

// By elimination with partial pivoting, in double for f64 and in fp32 for the others.
struct DeterminantParams {
  const void* x = nullptr;  // [count, n, n]
  void* y = nullptr;        // [count]
  void* work = nullptr;     // [count, n, n] of double or float
  DType dtype = DType::kUndefined;
  int64_t count = 0;
  int64_t n = 0;
};

size_t determinant_scratch_bytes(const DeterminantParams& p);
// cudaErrorInvalidValue for a type that is not floating, more than INT32_MAX matrices, or larger than 46340 squared.
cudaError_t launch_determinant(const DeterminantParams& p, cudaStream_t stream);

}  // namespace cuvil
