// Cumulative sums and products along the middle of [outer, n, inner].
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"

namespace cuvil {

struct CumSumParams {
  const void* x;
  void* y;      // may be x
  DType dtype;  // f32, f16, bf16, f64, i32, i64
  int64_t outer;
  int64_t n;
  int64_t inner;
  bool exclusive;  // an element's own value is left out
  bool reverse;    // from the end
  bool product;    // products instead of sums
};

cudaError_t launch_cumsum(const CumSumParams& params, cudaStream_t stream);

}  // namespace cuvil
