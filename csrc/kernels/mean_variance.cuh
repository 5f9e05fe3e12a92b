// Mean-variance normalization: (x - mean) / (standard deviation + epsilon) over rows.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"

namespace cuvil {

// x and y are contiguous [segments, rows, width]: row r is made of the `width` elements at [s, r] of every segment s.
// Statistics in float (f64 in double), the variance is that of the centred values.
struct MeanVarianceParams {
  const void* x = nullptr;
  void* y = nullptr;                // may be x
  DType dtype = DType::kUndefined;  // f32, f16, bf16 or f64
  int64_t segments = 1;
  int64_t rows = 0;
  int64_t width = 0;
  double epsilon = 1e-9;
};

cudaError_t launch_mean_variance(const MeanVarianceParams& params, cudaStream_t stream);

}  // namespace cuvil
