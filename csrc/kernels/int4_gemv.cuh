// y = act(x W + bias + residual) in float32 for a few rows of x, with a packed weight of 4 or 8 bits.
#pragma once

#include <cuda_runtime_api.h>

#include "device/activation.h"
#include "kernels/int4_weight.cuh"

namespace cuvil {

struct Int4GemvParams {
  Int4Weight weight;         // of f32
  const float* x = nullptr;  // [m, weight.depth]
  int m = 0;
  const float* bias = nullptr;      // weight.rows of them
  const float* residual = nullptr;  // as y
  ActivationParams activation;
  float* y = nullptr;  // [m, weight.rows]
};

// The codes are read once for each 4 rows of x.
cudaError_t launch_int4_gemv(const Int4GemvParams& p, cudaStream_t stream);

}  // namespace cuvil
