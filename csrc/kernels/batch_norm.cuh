// Batch normalization with given statistics: y = (x - mean) / sqrt(var + epsilon) * scale + bias, a channel each.
#pragma once

#include <cuda_runtime_api.h>

#include "core/dtype.h"

namespace cuvil {

struct BatchNormParams {
  const void* x = nullptr;  // [n, channels, inner]
  void* y = nullptr;
  DType dtype = DType::kUndefined;  // of x and y: f32, f16, bf16 or f64
  // [channels] each; scale and bias of one type, mean and variance of one type, each dtype or f32.
  const void *scale = nullptr, *bias = nullptr, *mean = nullptr, *variance = nullptr;
  DType scale_dtype = DType::kUndefined, mean_dtype = DType::kUndefined;
  int64_t n = 0, channels = 0, inner = 0;
  float epsilon = 1e-5f;
};

cudaError_t launch_batch_norm(const BatchNormParams& p, cudaStream_t stream);

}  // namespace cuvil
