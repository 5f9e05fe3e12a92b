// From an element type known at run time to one known to the compiler.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include "core/dtype.h"
#include "device/vec.cuh"

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

// f.template operator()<T>() for a type of that many bytes, a power of two up to kLargest, whatever the elements mean;
// cudaErrorInvalidValue for any other size.
template <int kLargest, typename F>
cudaError_t by_element_size(int bytes, const F& f) {
  static_assert(kLargest == 8 || kLargest == 16);
  switch (bytes) {
    case 1:
      return f.template operator()<Uint<1>>();
    case 2:
      return f.template operator()<Uint<2>>();
    case 4:
      return f.template operator()<Uint<4>>();
    case 8:
      return f.template operator()<Uint<8>>();
    case 16:
      if constexpr (kLargest == 16) return f.template operator()<Uint<16>>();
      [[fallthrough]];
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace cuvil::device
