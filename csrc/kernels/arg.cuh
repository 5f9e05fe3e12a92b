// Index of the maximum or minimum along the middle of [outer, n, inner].
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"

namespace cuvil {

// A NaN counts as the extremum. Of equal values the first is taken, or the last with `last`.
struct ArgParams {
  const void* x;
  int64_t* y;
  DType dtype;  // f32, f16, bf16, f64, i32, i64, i8, u8
  int64_t outer;
  int64_t n;  // > 0
  int64_t inner;
  bool max;
  bool last;
};

cudaError_t launch_arg(const ArgParams& params, cudaStream_t stream);

}  // namespace cuvil
