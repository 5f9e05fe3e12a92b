// y[i, j] = scale * c[i * stride_row + j * stride_col]: a broadcast matrix written out (Gemm's C, a scalar bias).
#pragma once

#include <cuda_runtime_api.h>

#include "core/dtype.h"

namespace cuvil {

struct BroadcastScaleParams {
  void* y = nullptr;  // [rows, cols]
  const void* c = nullptr;
  DType dtype = DType::kUndefined;  // f32, f16, bf16 or f64
  int64_t rows = 0, cols = 0;
  int64_t stride_row = 0, stride_col = 0;
  float scale = 1;
};

cudaError_t launch_broadcast_scale(const BroadcastScaleParams& p, cudaStream_t stream);

}  // namespace cuvil
