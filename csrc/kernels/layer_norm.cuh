// Layer normalisation and RMS normalisation of rows, with an optional residual sum before.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"

namespace cuvil {

// For each row:  s = x + skip + skip_bias,  y = (s - mean(s)) / sqrt(variance(s) + epsilon) * scale + bias
// (rms: y = s / sqrt(mean(s^2) + epsilon) * scale + bias). All in fp32 (f64 for f64); the variance is that of the
// centred values, so a large mean costs no digits. Everything is contiguous. y and sum may be x.
struct LayerNormParams {
  const void* x = nullptr;          // [rows, n]
  const void* scale = nullptr;      // [scale_size], repeated along the row
  const void* bias = nullptr;       // [bias_size] or null
  const void* skip = nullptr;       // [skip_rows, n] or null; row r adds skip row r % skip_rows
  const void* skip_bias = nullptr;  // [n] or null
  void* y = nullptr;                // [rows, n]
  void* sum = nullptr;              // [rows, n] or null: s, rounded to the element type
  float* mean = nullptr;            // [rows] or null
  float* inv_std = nullptr;         // [rows] or null: 1 / sqrt(variance + epsilon)
  DType dtype = DType::kUndefined;  // of every tensor but mean and inv_std: f32, f16, bf16 or f64
  int64_t rows = 0;
  int64_t n = 0;
  int64_t skip_rows = 1;
  int64_t scale_size = 0;  // n, or a divisor of it
  int64_t bias_size = 0;   // likewise; of no meaning without bias
  float epsilon = 0;
  bool rms = false;
};

// cudaErrorInvalidValue for another dtype.
cudaError_t launch_layer_norm(const LayerNormParams& p, cudaStream_t stream);

}  // namespace cuvil
