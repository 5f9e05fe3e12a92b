// Element types, numbered as ONNX TensorProto.DataType so that no table converts them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cuvil {

enum class DType : int32_t {
  kUndefined = 0,
  kF32 = 1,
  kU8 = 2,
  kI8 = 3,
  kU16 = 4,
  kI16 = 5,
  kI32 = 6,
  kI64 = 7,
  kString = 8,
  kBool = 9,
  kF16 = 10,
  kF64 = 11,
  kU32 = 12,
  kU64 = 13,
  kBF16 = 16,
  kF8E4M3 = 17,  // 8-bit floats: those ending in FNUZ are moved only, no GPU of NVIDIA computes with them
  kF8E4M3FNUZ = 18,
  kF8E5M2 = 19,
  kF8E5M2FNUZ = 20,
  kU4 = 21,  // two a byte, the first in the low half: size_of is 0, as no op but the quantizing ones takes them
  kI4 = 22,
  kU2 = 24,  // four a byte; these two numbered as ONNX Runtime does, in ONNX they are 25 and 26
  kI2 = 25,
};

// Bytes of one element; 0 for types that no kernel here stores.
constexpr size_t size_of(DType t) {
  switch (t) {
    case DType::kU8:
    case DType::kI8:
    case DType::kBool:
    case DType::kF8E4M3:
    case DType::kF8E4M3FNUZ:
    case DType::kF8E5M2:
    case DType::kF8E5M2FNUZ:
      return 1;
    case DType::kU16:
    case DType::kI16:
    case DType::kF16:
    case DType::kBF16:
      return 2;
    case DType::kF32:
    case DType::kI32:
    case DType::kU32:
      return 4;
    case DType::kF64:
    case DType::kI64:
    case DType::kU64:
      return 8;
    default:
      return 0;
  }
}

// The short names of cuvil::Pointwise programs and of error messages.
constexpr const char* name_of(DType t) {
  switch (t) {
    case DType::kF32:
      return "f32";
    case DType::kU8:
      return "u8";
    case DType::kI8:
      return "i8";
    case DType::kU16:
      return "u16";
    case DType::kI16:
      return "i16";
    case DType::kI32:
      return "i32";
    case DType::kI64:
      return "i64";
    case DType::kString:
      return "string";
    case DType::kBool:
      return "bool";
    case DType::kF16:
      return "f16";
    case DType::kF64:
      return "f64";
    case DType::kU32:
      return "u32";
    case DType::kU64:
      return "u64";
    case DType::kBF16:
      return "bf16";
    case DType::kF8E4M3:
      return "f8e4m3";
    case DType::kF8E4M3FNUZ:
      return "f8e4m3fnuz";
    case DType::kF8E5M2:
      return "f8e5m2";
    case DType::kF8E5M2FNUZ:
      return "f8e5m2fnuz";
    case DType::kU4:
      return "u4";
    case DType::kI4:
      return "i4";
    case DType::kU2:
      return "u2";
    case DType::kI2:
      return "i2";
    default:
      return "undefined";
  }
}

constexpr bool is_float(DType t) {
  return t == DType::kF32 || t == DType::kF16 || t == DType::kBF16 || t == DType::kF64;
}

}  // namespace cuvil
