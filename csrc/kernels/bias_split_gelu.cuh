// y = (left + bias) * gelu(right + bias) of the two halves of each row.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"

namespace cuvil {

struct BiasSplitGeluParams {
  const void* x = nullptr;          // [rows, 2 * n]
  const void* bias = nullptr;       // [2 * n]
  void* y = nullptr;                // [rows, n]
  DType dtype = DType::kUndefined;  // f32 or f16; computed in fp32
  int64_t rows = 0, n = 0;
};
cudaError_t launch_bias_split_gelu(const BiasSplitGeluParams& p, cudaStream_t stream);

}  // namespace cuvil
