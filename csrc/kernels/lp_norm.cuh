// Division by the 1-norm or the 2-norm along the middle of [outer, n, inner].
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"

namespace cuvil {

// Norms are accumulated in float (f64 in double). A run whose norm is 0 becomes 0.
struct LpNormParams {
  const void* x = nullptr;
  void* y = nullptr;                // may be x
  DType dtype = DType::kUndefined;  // f32, f16, bf16 or f64
  int64_t outer = 0;
  int64_t n = 0;
  int64_t inner = 0;
  bool euclidean = true;  // else the sum of magnitudes
};

cudaError_t launch_lp_norm(const LpNormParams& params, cudaStream_t stream);

}  // namespace cuvil
