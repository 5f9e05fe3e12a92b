// Standard ops of one input and no attribute.
#include "ops/program_builder.h"

namespace cuvil {
namespace {

using jit::PwOp;

template <PwOp op>
Elementwise unary(const NodeView& node) {
  ProgramBuilder b(node);
  const int x = b.load(0);
  return b.finish(b.emit(op, b.dtype_of(x), {x}));
}

Elementwise is_nan(const NodeView& node) {
  ProgramBuilder b(node);
  return b.finish(b.emit(PwOp::kIsNan, DType::kBool, {b.load(0)}));
}

Elementwise is_inf(const NodeView& node) {
  ProgramBuilder b(node);
  const bool negative = node.get<int64_t>("detect_negative", 1) != 0;
  const bool positive = node.get<int64_t>("detect_positive", 1) != 0;
  const int x = b.load(0);
  const int inf = b.emit(PwOp::kIsInf, DType::kBool, {x});
  if (negative && positive) return b.finish(inf);
  if (!negative && !positive) return b.finish(b.constant(DType::kBool, 0));
  const int zero = b.constant(b.dtype_of(x), 0);
  const int side = b.emit(positive ? PwOp::kGreater : PwOp::kLess, DType::kBool, {x, zero});
  return b.finish(b.emit(PwOp::kAnd, DType::kBool, {inf, side}));
}

// Versions before 6 carry a `consumed_inputs` attribute; ONNX Runtime no longer runs them.
template <PwOp op>
OpEntry entry(const char* type) {
  return elementwise<unary<op>>(type, 6);
}

const Register ops[] = {
    Register(entry<PwOp::kAbs>("Abs")),
    Register(entry<PwOp::kNeg>("Neg")),
    Register(entry<PwOp::kSqrt>("Sqrt")),
    Register(entry<PwOp::kReciprocal>("Reciprocal")),
    Register(entry<PwOp::kExp>("Exp")),
    Register(entry<PwOp::kLog>("Log")),
    Register(entry<PwOp::kErf>("Erf")),
    Register(entry<PwOp::kTanh>("Tanh")),
    Register(entry<PwOp::kSigmoid>("Sigmoid")),
    Register(entry<PwOp::kSin>("Sin")),
    Register(entry<PwOp::kCos>("Cos")),
    Register(entry<PwOp::kTan>("Tan")),
    Register(entry<PwOp::kAsin>("Asin")),
    Register(entry<PwOp::kAcos>("Acos")),
    Register(entry<PwOp::kAtan>("Atan")),
    Register(entry<PwOp::kSinh>("Sinh")),
    Register(entry<PwOp::kCosh>("Cosh")),
    Register(entry<PwOp::kAsinh>("Asinh")),
    Register(entry<PwOp::kAcosh>("Acosh")),
    Register(entry<PwOp::kAtanh>("Atanh")),
    Register(entry<PwOp::kFloor>("Floor")),
    Register(entry<PwOp::kCeil>("Ceil")),
    Register(entry<PwOp::kRound>("Round")),
    Register(entry<PwOp::kSign>("Sign")),
    Register(entry<PwOp::kRelu>("Relu")),
    Register(elementwise<unary<PwOp::kSoftplus>>("Softplus", 1)),
    Register(elementwise<unary<PwOp::kSoftsign>>("Softsign", 1)),
    Register(entry<PwOp::kHardswish>("HardSwish")),
    Register(entry<PwOp::kMish>("Mish")),
    Register(elementwise<unary<PwOp::kNot>>("Not", 1)),
    Register(entry<PwOp::kBitNot>("BitwiseNot")),
    Register(elementwise<is_nan>("IsNaN", 9)),
    Register(elementwise<is_inf>("IsInf", 10)),
};

}  // namespace
}  // namespace cuvil
