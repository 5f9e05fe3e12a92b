// The four 8-bit float formats of ONNX in software: exact, rounding to nearest even. The GPU's own instructions know
// two of them, and a cast moves more bytes than it computes.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/dtype.h"
#include "device/anywhere.h"

namespace cuvil::device {

struct Float8Format {
  int mantissa_bits = 3;
  int bias = 7;
  uint32_t largest = 0x7E;   // code of the largest finite number
  uint32_t overflow = 0x7F;  // code of what lies beyond it when not saturating: infinity, or NaN where there is none
  uint32_t nan = 0x7F;
  bool fnuz = false;  // one zero and one NaN, which has the code of -0
};

inline bool float8_format(DType t, Float8Format* format) {
  switch (t) {
    case DType::kF8E4M3:
      return *format = {3, 7, 0x7E, 0x7F, 0x7F, false}, true;
    case DType::kF8E4M3FNUZ:
      return *format = {3, 8, 0x7F, 0x80, 0x80, true}, true;
    case DType::kF8E5M2:
      return *format = {2, 15, 0x7B, 0x7C, 0x7F, false}, true;
    case DType::kF8E5M2FNUZ:
      return *format = {2, 16, 0x7F, 0x80, 0x80, true}, true;
    default:
      return false;
  }
}

// The nearest code. Beyond the largest finite number: that number when saturating, also for infinity.
CUVIL_ANYWHERE uint32_t encode_float8(float value, const Float8Format& f, bool saturate) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  const uint32_t sign = f.fnuz ? 0 : bits >> 31 << 7, magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return sign | f.nan;
  uint32_t code = f.largest + 1;  // infinity and what is too large
  if (magnitude < 0x7F800000u) {
    const int exponent = static_cast<int>(magnitude >> 23) - 127 + f.bias;  // as stored, below 1 for subnormals
    const uint32_t significand = (magnitude & 0x7FFFFFu) | 0x800000u;
    const int shift = 23 - f.mantissa_bits + (exponent < 1 ? 1 - exponent : 0);
    uint32_t rounded = 0;  // with the leading bit; float32's own subnormals are far below every format's half step
    if (shift <= 24) {
      rounded = significand >> shift;
      const uint32_t rest = significand & ((1u << shift) - 1), half = 1u << (shift - 1);
      rounded += rest > half || (rest == half && (rounded & 1));
    }
    // A carry out of the mantissa moves on into the exponent, which is what it should do.
    const uint32_t above = exponent < 1 ? 0 : static_cast<uint32_t>(exponent - 1) << f.mantissa_bits;
    code = above + rounded;
  }
  if (code > f.largest) code = saturate ? f.largest : f.overflow;
  if (!f.fnuz) return sign | code;
  return code == 0 || code == f.nan ? code : (bits >> 31 << 7) | code;
}

CUVIL_ANYWHERE float decode_float8(uint32_t code, const Float8Format& f) {
  const uint32_t magnitude = code & 0x7F, exponent = magnitude >> f.mantissa_bits;
  const uint32_t mantissa = magnitude & ((1u << f.mantissa_bits) - 1);
  uint32_t bits;
  if (f.fnuz ? code == f.nan : magnitude > f.largest) {
    bits = !f.fnuz && f.overflow != f.nan && magnitude == f.overflow ? 0x7F800000u : 0x7FC00000u;
  } else if (exponent) {
    bits = (exponent + 127 - static_cast<uint32_t>(f.bias)) << 23 | mantissa << (23 - f.mantissa_bits);
  } else {
    const uint32_t step_bits = static_cast<uint32_t>(128 - f.bias - f.mantissa_bits) << 23;  // 2^(1 - bias - mantissa)
    float step;
    memcpy(&step, &step_bits, sizeof(step));
    const float value = static_cast<float>(mantissa) * step;
    memcpy(&bits, &value, sizeof(bits));
  }
  bits |= code >> 7 << 31;
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

}  // namespace cuvil::device
