// Tensors made of nothing but parameters: one value everywhere (ConstantOfShape), an arithmetic sequence (Range).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"

namespace cuvil {

struct FillParams {
  void* output;  // fastest where aligned to 16 bytes
  int64_t count;
  int element_size;  // 1, 2, 4 or 8 bytes
  uint64_t bits;     // the value, in the low bytes
};

// output[i] = start + i * delta, rounded after each operation. f32, f64, i16, i32, i64.
struct RangeParams {
  void* output;
  int64_t count;
  DType dtype;
  double start, delta;           // floating types
  int64_t start_int, delta_int;  // integer types
};

cudaError_t launch_fill(const FillParams& params, cudaStream_t stream);
cudaError_t launch_range(const RangeParams& params, cudaStream_t stream);

}  // namespace cuvil
