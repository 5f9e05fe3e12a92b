// From an element type known at run time to one known to the compiler.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include "core/dtype.h"

namespace cuvil::device {

// f.template operator()<T>() for the C++ type of a floating dtype; cudaErrorInvalidValue for any other.
template <typename F>
cudaError_t by_float_type(DType dtype, const F& f) {
  switch (dtype) {
    case DType::kF32:
      return f.template operator()<float>();
    case DType::kF16:
      return f.template operator()<__half>();
    case DType::kBF16:
      return f.template operator()<__nv_bfloat16>();
    case DType::kF64:
      return f.template operator()<double>();
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace cuvil::device
