#include "jit/pw_op.h"

#include <array>

namespace cuvil::jit {
namespace {

constexpr int kCheap = 1, kDivide = 8, kTranscendental = 20, kHeavy = 40;

constexpr PwInfo same(PwOp op, const char* name, int arity, uint8_t dtypes, bool exact, int cost) {
  return {op, name, arity, PwRule::kSame, dtypes, exact, cost};
}
constexpr PwInfo math(PwOp op, const char* name, int cost) { return same(op, name, 1, kSetFloat, false, cost); }
constexpr PwInfo params(PwOp op, const char* name, int arity, int cost) {
  return {op, name, arity, PwRule::kParams, kSetFloat, false, cost};
}
constexpr PwInfo compare(PwOp op, const char* name, uint8_t dtypes) {
  return {op, name, 2, PwRule::kCompare, dtypes, true, kCheap};
}
constexpr PwInfo test(PwOp op, const char* name) { return {op, name, 1, PwRule::kTest, kSetFloat, true, kCheap}; }

// In the order of the enumeration, which `info` relies on and the static_assert below checks.
constexpr std::array kTable = {
    PwInfo{PwOp::kLoad, "load", 0, PwRule::kLoad, kSetAny, true, 0},
    PwInfo{PwOp::kConst, "const", 0, PwRule::kConst, kSetAny, true, 0},
    PwInfo{PwOp::kCast, "cast", 1, PwRule::kCast, kSetAny, false, kCheap},
    same(PwOp::kAdd, "add", 2, kSetNumber, false, kCheap),
    same(PwOp::kSub, "sub", 2, kSetNumber, false, kCheap),
    same(PwOp::kMul, "mul", 2, kSetNumber, false, kCheap),
    same(PwOp::kDiv, "div", 2, kSetNumber, false, kDivide),
    same(PwOp::kPow, "pow", 2, kSetNumber, false, kHeavy),
    same(PwOp::kMod, "mod", 2, kSetInt, true, kDivide),
    same(PwOp::kFmod, "fmod", 2, kSetNumber, true, kHeavy),
    same(PwOp::kMin, "min", 2, kSetNumber, true, kCheap),
    same(PwOp::kMax, "max", 2, kSetNumber, true, kCheap),
    same(PwOp::kPrelu, "prelu", 2, kSetNumber, false, kCheap),
    same(PwOp::kNeg, "neg", 1, kSetFloat | kSetSigned, true, kCheap),
    same(PwOp::kAbs, "abs", 1, kSetNumber, true, kCheap),
    math(PwOp::kSqrt, "sqrt", kDivide),
    math(PwOp::kReciprocal, "reciprocal", kDivide),
    math(PwOp::kExp, "exp", kDivide),
    math(PwOp::kLog, "log", kTranscendental),
    math(PwOp::kErf, "erf", kTranscendental),
    math(PwOp::kTanh, "tanh", kTranscendental),
    math(PwOp::kSigmoid, "sigmoid", kTranscendental),
    math(PwOp::kSin, "sin", kHeavy),
    math(PwOp::kCos, "cos", kHeavy),
    math(PwOp::kTan, "tan", kHeavy),
    math(PwOp::kAsin, "asin", kTranscendental),
    math(PwOp::kAcos, "acos", kTranscendental),
    math(PwOp::kAtan, "atan", kTranscendental),
    math(PwOp::kSinh, "sinh", kTranscendental),
    math(PwOp::kCosh, "cosh", kTranscendental),
    math(PwOp::kAsinh, "asinh", kTranscendental),
    math(PwOp::kAcosh, "acosh", kTranscendental),
    math(PwOp::kAtanh, "atanh", kTranscendental),
    same(PwOp::kFloor, "floor", 1, kSetFloat, true, kCheap),
    same(PwOp::kCeil, "ceil", 1, kSetFloat, true, kCheap),
    same(PwOp::kRound, "round", 1, kSetFloat, true, kCheap),
    same(PwOp::kSign, "sign", 1, kSetNumber, true, kCheap),
    same(PwOp::kRelu, "relu", 1, kSetFloat | kSetSigned, true, kCheap),
    math(PwOp::kSoftplus, "softplus", kHeavy),
    math(PwOp::kSoftsign, "softsign", kDivide),
    math(PwOp::kHardswish, "hardswish", kCheap),
    math(PwOp::kGelu, "gelu", kTranscendental),
    math(PwOp::kGeluTanh, "gelu_tanh", kTranscendental),
    math(PwOp::kSilu, "silu", kTranscendental),
    math(PwOp::kMish, "mish", kHeavy),
    same(PwOp::kIdentity, "identity", 1, kSetAny, true, 0),
    params(PwOp::kLeakyRelu, "leaky_relu", 2, kCheap),
    params(PwOp::kElu, "elu", 2, kTranscendental),
    params(PwOp::kSelu, "selu", 3, kTranscendental),
    params(PwOp::kCelu, "celu", 2, kTranscendental),
    params(PwOp::kHardSigmoid, "hard_sigmoid", 3, kCheap),
    params(PwOp::kThresholdedRelu, "thresholded_relu", 2, kCheap),
    params(PwOp::kQuickGelu, "quick_gelu", 2, kTranscendental),
    same(PwOp::kClip, "clip", 3, kSetNumber, true, kCheap),
    compare(PwOp::kEqual, "equal", kSetAny),
    compare(PwOp::kLess, "less", kSetNumber),
    compare(PwOp::kLessEqual, "less_equal", kSetNumber),
    compare(PwOp::kGreater, "greater", kSetNumber),
    compare(PwOp::kGreaterEqual, "greater_equal", kSetNumber),
    test(PwOp::kIsNan, "isnan"),
    test(PwOp::kIsInf, "isinf"),
    same(PwOp::kAnd, "and", 2, kSetBool, true, kCheap),
    same(PwOp::kOr, "or", 2, kSetBool, true, kCheap),
    same(PwOp::kXor, "xor", 2, kSetBool, true, kCheap),
    same(PwOp::kNot, "not", 1, kSetBool, true, kCheap),
    same(PwOp::kBitAnd, "bitand", 2, kSetInt, true, kCheap),
    same(PwOp::kBitOr, "bitor", 2, kSetInt, true, kCheap),
    same(PwOp::kBitXor, "bitxor", 2, kSetInt, true, kCheap),
    same(PwOp::kBitNot, "bitnot", 1, kSetInt, true, kCheap),
    same(PwOp::kShl, "shl", 2, kSetInt, true, kCheap),
    same(PwOp::kShr, "shr", 2, kSetInt, true, kCheap),
    PwInfo{PwOp::kWhere, "where", 3, PwRule::kWhere, kSetAny, true, kCheap},
};

constexpr bool in_order() {
  for (size_t i = 0; i < kTable.size(); ++i)
    if (static_cast<size_t>(kTable[i].op) != i) return false;
  return kTable.size() == static_cast<size_t>(PwOp::kWhere) + 1;
}
static_assert(in_order());

}  // namespace

const PwInfo& info(PwOp op) { return kTable[static_cast<size_t>(op)]; }

std::optional<PwOp> find_op(std::string_view name) {
  for (const PwInfo& row : kTable)
    if (name == row.name) return row.op;
  return std::nullopt;
}

}  // namespace cuvil::jit
