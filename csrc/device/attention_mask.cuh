// The additive mask of an attention kernel, whatever its type.
#pragma once

#include <cmath>

#include "core/dtype.h"
#include "device/vec.cuh"

namespace cuvil::device {

// What a mask's element adds to the score.
template <typename E>
__device__ __forceinline__ float mask_addend(E e) {
  return to_compute(e);
}
template <>
__device__ __forceinline__ float mask_addend<bool>(bool seen) {
  return seen ? 0.f : -INFINITY;
}

// The same for element `i` of a mask of type f32, bool or T.
template <typename T>
__device__ __forceinline__ float mask_value(const void* mask, DType dtype, int64_t i) {
  if (dtype == DType::kF32) return static_cast<const float*>(mask)[i];
  if (dtype == DType::kBool) return mask_addend(static_cast<const bool*>(mask)[i]);
  return mask_addend(static_cast<const T*>(mask)[i]);
}

// 1 / sum of a row's exponentials. No key was seen when the sum is 0.
__device__ __forceinline__ float row_scale(float sum, bool masked_rows_zero) {
  return masked_rows_zero && sum == 0.f ? 0.f : 1.f / sum;
}

}  // namespace cuvil::device
