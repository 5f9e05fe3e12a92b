// The instruction set of pointwise programs: one table of names, arities and dtype rules.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "core/dtype.h"

namespace cuvil::jit {

enum class PwOp : uint8_t {
  kLoad,
  kConst,
  kCast,
  kAdd,
  kSub,
  kMul,
  kDiv,
  kPow,
  kMod,
  kFmod,
  kMin,
  kMax,
  kPrelu,
  kNeg,
  kAbs,
  kSqrt,
  kReciprocal,
  kExp,
  kLog,
  kErf,
  kTanh,
  kSigmoid,
  kSin,
  kCos,
  kTan,
  kAsin,
  kAcos,
  kAtan,
  kSinh,
  kCosh,
  kAsinh,
  kAcosh,
  kAtanh,
  kFloor,
  kCeil,
  kRound,
  kSign,
  kRelu,
  kSoftplus,
  kSoftsign,
  kHardswish,
  kGelu,
  kGeluTanh,
  kSilu,
  kMish,
  kIdentity,
  kLeakyRelu,
  kElu,
  kSelu,
  kCelu,
  kHardSigmoid,
  kThresholdedRelu,
  kQuickGelu,
  kClip,
  kEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIsNan,
  kIsInf,
  kAnd,
  kOr,
  kXor,
  kNot,
  kBitAnd,
  kBitOr,
  kBitXor,
  kBitNot,
  kShl,
  kShr,
  kWhere,
};

// How the dtypes of operands and result relate.
enum class PwRule : uint8_t {
  kLoad,     // no operand instructions
  kConst,    // no operand instructions
  kCast,     // one operand of any dtype
  kSame,     // operands and result of one dtype
  kParams,   // the first operand has the result's dtype; the others are constants (f32, or the result's dtype)
  kCompare,  // operands of one dtype, result bool
  kTest,     // one floating operand, result bool
  kWhere,    // bool, then two operands of the result's dtype
};

// Sets of operand dtypes.
enum : uint8_t {
  kSetFloat = 1,     // f32 f16 bf16 f64
  kSetSigned = 2,    // i8 i16 i32 i64
  kSetUnsigned = 4,  // u8 u16 u32 u64
  kSetBool = 8,
  kSetInt = kSetSigned | kSetUnsigned,
  kSetNumber = kSetFloat | kSetInt,
  kSetAny = kSetNumber | kSetBool,
};

struct PwInfo {
  PwOp op;
  const char* name;
  int arity;  // operand instructions
  PwRule rule;
  uint8_t dtypes;  // of the operands (kTest, kCompare) or of operands and result
  // The result of f16 and bf16 operands is representable without rounding: nothing to round then.
  bool exact;
  // Rough instruction count in f32, to choose how far a kernel unrolls.
  int cost;
};

const PwInfo& info(PwOp op);
std::optional<PwOp> find_op(std::string_view name);

// The set a dtype belongs to; 0 for dtypes that programs do not know.
constexpr uint8_t set_of(DType t) {
  switch (t) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
    case DType::kF64:
      return kSetFloat;
    case DType::kI8:
    case DType::kI16:
    case DType::kI32:
    case DType::kI64:
      return kSetSigned;
    case DType::kU8:
    case DType::kU16:
    case DType::kU32:
    case DType::kU64:
      return kSetUnsigned;
    case DType::kBool:
      return kSetBool;
    default:
      return 0;
  }
}

}  // namespace cuvil::jit
