// Softmax and log-softmax along one axis.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"

namespace cuvil {

// x and y are contiguous [outer, n, inner]; the function runs over n. y may be x.
// Computed in fp32 (f64 for f64). A NaN, a +inf, or only -inf among n values makes all n results NaN, as in ONNX
// Runtime.
struct SoftmaxParams {
  const void* x = nullptr;
  void* y = nullptr;
  DType dtype = DType::kUndefined;  // f32, f16, bf16 or f64
  int64_t outer = 0;
  int64_t n = 0;
  int64_t inner = 1;
  bool log = false;
};

// cudaErrorInvalidValue for another dtype.
cudaError_t launch_softmax(const SoftmaxParams& p, cudaStream_t stream);

}  // namespace cuvil
