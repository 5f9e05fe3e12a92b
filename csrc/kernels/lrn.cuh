// Local response normalization across channels: y = x / (bias + alpha * sum of squares)^beta.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"

namespace cuvil {

// x and y are contiguous [batch, channels, inner] and do not overlap. The sum runs over the channels from c - before
// to c + after that exist. Sums in float (f64 in double).
struct LrnParams {
  const void* x = nullptr;
  void* y = nullptr;
  DType dtype = DType::kUndefined;  // f32, f16, bf16 or f64
  int64_t batch = 0;
  int64_t channels = 0;
  int64_t inner = 0;
  int64_t before = 0;
  int64_t after = 0;
  double alpha = 0;
  double beta = 0;
  double bias = 0;
};

cudaError_t launch_lrn(const LrnParams& params, cudaStream_t stream);

}  // namespace cuvil
