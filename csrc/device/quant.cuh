// Codes of quantized tensors, eight at a time: reading, writing, scales and zero points.
#pragma once

#include <cuda_fp8.h>

#include "core/dtype.h"
#include "device/vec.cuh"

namespace cuvil::device {

// How codes are stored. Signedness is a run-time matter (QuantRange).
enum class Code { kInt2, kInt4, kInt8, kInt16, kInt32, kFloat8 };

// Bits of a code of an integer.
template <Code C>
constexpr int kCodeBits = C == Code::kInt2    ? 2
                          : C == Code::kInt4  ? 4
                          : C == Code::kInt16 ? 16
                          : C == Code::kInt32 ? 32
                                              : 8;
// Codes that share a byte, the first in the lowest bits.
template <Code C>
constexpr int kCodesPerByte = kCodeBits<C> < 8 ? 8 / kCodeBits<C> : 1;

inline bool code_of(DType t, Code* code) {
  switch (t) {
    case DType::kU2:
    case DType::kI2:
      return *code = Code::kInt2, true;
    case DType::kU4:
    case DType::kI4:
      return *code = Code::kInt4, true;
    case DType::kU8:
    case DType::kI8:
      return *code = Code::kInt8, true;
    case DType::kU16:
    case DType::kI16:
      return *code = Code::kInt16, true;
    case DType::kI32:
      return *code = Code::kInt32, true;
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      return *code = Code::kFloat8, true;
    default:
      return false;
  }
}

inline bool is_signed_code(DType t) {
  return t == DType::kI2 || t == DType::kI4 || t == DType::kI8 || t == DType::kI16 || t == DType::kI32;
}

__device__ __forceinline__ float read_float(const void* p, DType t, int64_t i) {
  if (t == DType::kF32) return static_cast<const float*>(p)[i];
  if (t == DType::kF16) return to_compute(static_cast<const __half*>(p)[i]);
  return to_compute(static_cast<const __nv_bfloat16*>(p)[i]);
}

// Integer code i of a tensor.
template <Code C>
__device__ __forceinline__ int read_code(const void* p, bool is_signed, int64_t i) {
  if constexpr (kCodesPerByte<C> > 1) {
    constexpr int kBits = kCodeBits<C>, kSign = 1 << (kBits - 1);
    const int code = static_cast<const uint8_t*>(p)[i / kCodesPerByte<C>] >> (i % kCodesPerByte<C> * kBits);
    const int low = code & ((1 << kBits) - 1);
    return is_signed ? (low ^ kSign) - kSign : low;
  } else if constexpr (C == Code::kInt8) {
    return is_signed ? static_cast<const int8_t*>(p)[i] : static_cast<const uint8_t*>(p)[i];
  } else if constexpr (C == Code::kInt16) {
    return is_signed ? static_cast<const int16_t*>(p)[i] : static_cast<const uint16_t*>(p)[i];
  } else {
    return static_cast<const int32_t*>(p)[i];
  }
}

// Largest and smallest code of `bits` bits.
__host__ __device__ __forceinline__ int lowest_code(int bits, bool is_signed) {
  return is_signed ? -(1 << (bits - 1)) : 0;
}
__host__ __device__ __forceinline__ int highest_code(int bits, bool is_signed) {
  return is_signed ? (1 << (bits - 1)) - 1 : (1 << bits) - 1;
}

// round(v) + zero_point within [low, high]; a NaN gives low.
__device__ __forceinline__ int quantize_code(float v, int zero_point, int low, int high) {
  const float least = static_cast<float>(low - zero_point), most = static_cast<float>(high - zero_point);
  return static_cast<int>(rintf(fminf(fmaxf(v, least), most))) + zero_point;
}

__device__ __forceinline__ uint8_t to_float8(float v, bool e5m2, bool saturate) {
  return __nv_cvt_float_to_fp8(v, saturate ? __NV_SATFINITE : __NV_NOSAT, e5m2 ? __NV_E5M2 : __NV_E4M3);
}
__device__ __forceinline__ float from_float8(uint8_t v, bool e5m2) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(v, e5m2 ? __NV_E5M2 : __NV_E4M3)));
}

}  // namespace cuvil::device
