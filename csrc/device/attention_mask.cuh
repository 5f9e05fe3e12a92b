// The additive mask of an attention kernel, whatever its type.
#pragma once

#include <cmath>

#include "core/dtype.h"
#include "device/vec.cuh"

namespace cuvil::device {

// Element `i` of a mask of type f32, bool (true: 0, false: -inf) or T, as a float.
template <typename T>
__device__ __forceinline__ float mask_value(const void* mask, DType dtype, int64_t i) {
  if (dtype == DType::kF32) return static_cast<const float*>(mask)[i];
  if (dtype == DType::kBool) return static_cast<const bool*>(mask)[i] ? 0.f : -INFINITY;
  return to_compute(static_cast<const T*>(mask)[i]);
}

// 1 / sum of a row's exponentials. No key was seen when the sum is 0.
__device__ __forceinline__ float row_scale(float sum, bool masked_rows_zero) {
  return masked_rows_zero && sum == 0.f ? 0.f : 1.f / sum;
}

}  // namespace cuvil::device
