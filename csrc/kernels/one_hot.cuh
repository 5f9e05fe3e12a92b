// One-hot vectors: [outer, inner] indices -> [outer, depth, inner] of two values.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"

namespace cuvil {

// Indices in [-depth, depth) set their element, negative ones counting from the end; others set none.
struct OneHotParams {
  const void* indices;
  DType index_dtype;   // i32, i64 or f32 (truncated)
  const void* values;  // device: the off value, then the on value
  void* y;
  int element_size;  // of the values: 1, 2, 4 or 8 bytes
  int64_t outer;
  int64_t depth;
  int64_t inner;
};

cudaError_t launch_one_hot(const OneHotParams& params, cudaStream_t stream);

}  // namespace cuvil
