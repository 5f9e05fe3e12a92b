// Conversions between ordinary types and those below a byte or without arithmetic: 8-bit floats, 4- and 2-bit integers.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"

namespace cuvil {

// Bits of an element of a narrow type, 0 for any other.
constexpr int narrow_bits(DType t) {
  switch (t) {
    case DType::kF8E4M3:
    case DType::kF8E4M3FNUZ:
    case DType::kF8E5M2:
    case DType::kF8E5M2FNUZ:
      return 8;
    case DType::kI4:
    case DType::kU4:
      return 4;
    case DType::kI2:
    case DType::kU2:
      return 2;
    default:
      return 0;
  }
}

// The types that narrow ones convert from and to.
constexpr bool has_narrow_cast(DType t) {
  return t == DType::kF32 || t == DType::kF16 || t == DType::kBF16 || t == DType::kI8 || t == DType::kU8 ||
         t == DType::kI32;
}

// y[i] = x[i]. Exactly one of the two types is narrow. Floats become 8-bit floats by rounding to nearest even, integers
// by rounding half away from zero; whatever an integer type cannot hold wraps around.
struct NarrowCastParams {
  const void* x = nullptr;
  void* y = nullptr;
  int64_t n = 0;
  DType from = DType::kUndefined, to = DType::kUndefined;
  bool saturate = true;  // to 8-bit floats: what is too large becomes the largest finite number
};

// y may be x where both types have one byte.
cudaError_t launch_narrow_cast(const NarrowCastParams& p, cudaStream_t stream);

}  // namespace cuvil
