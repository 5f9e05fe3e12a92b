// Standard ops of two or more inputs: arithmetic, comparison, logic.
#include "ops/program_builder.h"

namespace cuvil {
namespace {

using jit::PwOp;

template <PwOp op>
Elementwise binary(const NodeView& node) {
  ProgramBuilder b(node);
  const int x = b.load(0), y = b.load(1);
  return b.finish(b.emit(op, b.dtype_of(x), {x, y}));
}

template <PwOp op>
Elementwise comparison(const NodeView& node) {
  ProgramBuilder b(node);
  const int x = b.load(0), y = b.load(1);
  return b.finish(b.emit(op, DType::kBool, {x, y}));
}

// One or more inputs, combined from the left.
int fold(ProgramBuilder& b, const NodeView& node, PwOp op) {
  int value = b.load(0);
  for (int i = 1; i < node.num_inputs(); ++i) value = b.emit(op, b.dtype_of(value), {value, b.load(i)});
  return value;
}

template <PwOp op>
Elementwise variadic(const NodeView& node) {
  ProgramBuilder b(node);
  return b.finish(fold(b, node, op));
}

Elementwise mean(const NodeView& node) {
  ProgramBuilder b(node);
  const int sum = fold(b, node, PwOp::kAdd);
  const DType t = b.dtype_of(sum);
  return b.finish(b.emit(PwOp::kDiv, t, {sum, b.constant(t, node.num_inputs())}));
}

// x - floor(x / y) * y of floats, which version 28 allows, from the exact remainder of the truncated quotient: one of
// the other sign is one y short, and a zero takes the sign of y. NaN passes through the sum.
int floor_mod(ProgramBuilder& b, int x, int y) {
  const DType t = b.dtype_of(x);
  const int r = b.emit(PwOp::kFmod, t, {x, y}), zero = b.constant(t, 0.0);
  const int below = b.emit(PwOp::kLess, DType::kBool, {y, zero});
  const int differ = b.emit(PwOp::kXor, DType::kBool, {b.emit(PwOp::kLess, DType::kBool, {r, zero}), below});
  const int moved = b.emit(PwOp::kWhere, t, {differ, b.emit(PwOp::kAdd, t, {r, y}), r});
  const int signed_zero = b.emit(PwOp::kWhere, t, {below, b.constant(t, -0.0), zero});
  return b.emit(PwOp::kWhere, t, {b.emit(PwOp::kEqual, DType::kBool, {r, zero}), signed_zero, moved});
}

Elementwise mod(const NodeView& node) {
  ProgramBuilder b(node);
  const int x = b.load(0), y = b.load(1);
  const DType t = b.dtype_of(x);
  if (node.get<int64_t>("fmod", 0) != 0) return b.finish(b.emit(PwOp::kFmod, t, {x, y}));
  require(!is_float(t) || node.since_version() >= 28, "Mod of ", name_of(t), " requires fmod = 1 before opset 28");
  return b.finish(is_float(t) ? floor_mod(b, x, y) : b.emit(PwOp::kMod, t, {x, y}));
}

// The integer that a double within its power's error (a few units in the last place) stands for, else the value: a
// cast of 2.9999999999999996 to an integer would be 2.
int snapped_to_integer(ProgramBuilder& b, int value) {
  const DType t = DType::kF64;
  const int nearest = b.emit(PwOp::kRound, t, {value});
  const int distance = b.emit(PwOp::kAbs, t, {b.emit(PwOp::kSub, t, {value, nearest})});
  const int margin = b.emit(PwOp::kMul, t, {b.emit(PwOp::kAbs, t, {value}), b.constant(t, 0x1p-50)});
  const int close = b.emit(PwOp::kLessEqual, DType::kBool, {distance, margin});
  return b.emit(PwOp::kWhere, t, {close, nearest, value});
}

// Base and exponent may differ in dtype; the result has the base's.
Elementwise pow(const NodeView& node) {
  ProgramBuilder b(node);
  const int x = b.load(0), y = b.load(1);
  const DType base = b.dtype_of(x), exponent = b.dtype_of(y);
  DType t = base;
  if (base != exponent) {
    const bool integers = !is_float(base) && !is_float(exponent);
    // As the C++ promotion of ONNX Runtime's CPU kernel: integers with a fraction need double.
    const bool wide = base == DType::kF64 || exponent == DType::kF64 || !is_float(base);
    t = integers ? DType::kI64 : wide ? DType::kF64 : DType::kF32;
  }
  int result = b.emit(PwOp::kPow, t, {b.cast(x, t), b.cast(y, t)});
  if (!is_float(base) && is_float(t)) result = snapped_to_integer(b, result);
  return b.finish(b.cast(result, base));
}

Elementwise bit_shift(const NodeView& node) {
  ProgramBuilder b(node);
  const int x = b.load(0), y = b.load(1);
  const std::string direction = node.get<std::string>("direction", "");
  require(direction == "LEFT" || direction == "RIGHT", "attribute `direction` is '", direction,
          "', required LEFT or RIGHT");
  return b.finish(b.emit(direction == "LEFT" ? PwOp::kShl : PwOp::kShr, b.dtype_of(x), {x, y}));
}

Elementwise where(const NodeView& node) {
  ProgramBuilder b(node);
  const int condition = b.load(0), x = b.load(1), y = b.load(2);
  return b.finish(b.emit(PwOp::kWhere, b.dtype_of(x), {condition, x, y}));
}

// NumPy broadcasting came with version 7 (8 for the variadic ops, whose earlier versions want equal shapes).
const Register ops[] = {
    Register(elementwise<binary<PwOp::kAdd>>("Add", 7)),
    Register(elementwise<binary<PwOp::kSub>>("Sub", 7)),
    Register(elementwise<binary<PwOp::kMul>>("Mul", 7)),
    Register(elementwise<binary<PwOp::kDiv>>("Div", 7)),
    Register(elementwise<binary<PwOp::kPrelu>>("PRelu", 7)),
    Register(elementwise<pow>("Pow", 7)),
    Register(elementwise<mod>("Mod", 10)),
    Register(elementwise<variadic<PwOp::kAdd>>("Sum", 6)),
    Register(elementwise<variadic<PwOp::kMin>>("Min", 6)),
    Register(elementwise<variadic<PwOp::kMax>>("Max", 6)),
    Register(elementwise<mean>("Mean", 6)),
    Register(elementwise<comparison<PwOp::kEqual>>("Equal", 7)),
    Register(elementwise<comparison<PwOp::kLess>>("Less", 7)),
    Register(elementwise<comparison<PwOp::kLessEqual>>("LessOrEqual", 12)),
    Register(elementwise<comparison<PwOp::kGreater>>("Greater", 7)),
    Register(elementwise<comparison<PwOp::kGreaterEqual>>("GreaterOrEqual", 12)),
    Register(elementwise<binary<PwOp::kAnd>>("And", 7)),
    Register(elementwise<binary<PwOp::kOr>>("Or", 7)),
    Register(elementwise<binary<PwOp::kXor>>("Xor", 7)),
    Register(elementwise<binary<PwOp::kBitAnd>>("BitwiseAnd", 18)),
    Register(elementwise<binary<PwOp::kBitOr>>("BitwiseOr", 18)),
    Register(elementwise<binary<PwOp::kBitXor>>("BitwiseXor", 18)),
    Register(elementwise<bit_shift>("BitShift", 11)),
    Register(elementwise<where>("Where", 9)),
};

}  // namespace
}  // namespace cuvil
