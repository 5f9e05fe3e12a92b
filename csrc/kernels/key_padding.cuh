// A padding mask of integers, and perhaps a bias, as one tensor to add to an attention's scores.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"

namespace cuvil {

struct KeyPaddingParams {
  const int32_t* mask = nullptr;   // 0 hides a key; with `lengths`, [shape[0]]: keys from there on are hidden
  const void* bias = nullptr;      // added, or null
  float* y = nullptr;              // [shape], contiguous: `hidden` or 0, plus the bias
  DType bias_dtype = DType::kF32;  // f32, f16 or bf16
  int64_t shape[4] = {};           // batch, heads, queries, keys
  int64_t mask_strides[4] = {}, bias_strides[4] = {};
  bool lengths = false;
  float hidden = 0;
};

// cudaErrorInvalidValue for another type of bias.
cudaError_t launch_key_padding(const KeyPaddingParams& p, cudaStream_t stream);

}  // namespace cuvil
