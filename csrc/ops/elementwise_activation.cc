// Activations with attributes, of ONNX, com.microsoft and cuvil.
#include "generated/ops.inc"
#include "ops/program_builder.h"

namespace cuvil {
namespace {

using jit::PwOp;

// op(x, attribute): attributes stay f32 constants, as f16 and bf16 are computed in f32.
int with_params(ProgramBuilder& b, const NodeView& node, PwOp op, int x, const char* first, float first_default) {
  return b.emit(op, b.dtype_of(x), {x, b.constant(DType::kF32, node.get<float>(first, first_default))});
}
int with_params(ProgramBuilder& b, const NodeView& node, PwOp op, int x, const char* first, float first_default,
                const char* second, float second_default) {
  const int alpha = b.constant(DType::kF32, node.get<float>(first, first_default));
  const int beta = b.constant(DType::kF32, node.get<float>(second, second_default));
  return b.emit(op, b.dtype_of(x), {x, alpha, beta});
}

Elementwise leaky_relu(const NodeView& node) {
  ProgramBuilder b(node);
  return b.finish(with_params(b, node, PwOp::kLeakyRelu, b.load(0), "alpha", 0.01f));
}

Elementwise elu(const NodeView& node) {
  ProgramBuilder b(node);
  return b.finish(with_params(b, node, PwOp::kElu, b.load(0), "alpha", 1.0f));
}

Elementwise celu(const NodeView& node) {
  ProgramBuilder b(node);
  return b.finish(with_params(b, node, PwOp::kCelu, b.load(0), "alpha", 1.0f));
}

Elementwise thresholded_relu(const NodeView& node) {
  ProgramBuilder b(node);
  return b.finish(with_params(b, node, PwOp::kThresholdedRelu, b.load(0), "alpha", 1.0f));
}

Elementwise selu(const NodeView& node) {
  ProgramBuilder b(node);
  return b.finish(with_params(b, node, PwOp::kSelu, b.load(0), "alpha", 1.67326319217681884765625f, "gamma",
                              1.05070102214813232421875f));
}

Elementwise hard_sigmoid(const NodeView& node) {
  ProgramBuilder b(node);
  return b.finish(with_params(b, node, PwOp::kHardSigmoid, b.load(0), "alpha", 0.2f, "beta", 0.5f));
}

Elementwise swish(const NodeView& node) {
  ProgramBuilder b(node);
  const int x = b.load(0);
  if (node.get<float>("alpha", 1.0f) == 1.0f) return b.finish(b.emit(PwOp::kSilu, b.dtype_of(x), {x}));
  return b.finish(with_params(b, node, PwOp::kQuickGelu, x, "alpha", 1.0f));
}

Elementwise quick_gelu(const NodeView& node) {
  ProgramBuilder b(node);
  return b.finish(with_params(b, node, PwOp::kQuickGelu, b.load(0), "alpha", 1.702f));
}

// Compared and shifted in f32 (f64), as the attributes are f32.
Elementwise shrink(const NodeView& node) {
  ProgramBuilder b(node);
  const int given = b.load(0);
  const DType t = b.dtype_of(given), wide = t == DType::kF64 ? t : DType::kF32;
  require(is_float(t), "Shrink of ", name_of(t), " is not supported");
  const int x = b.cast(given, wide);
  const float lambda = node.get<float>("lambd", 0.5f);
  const int bias = b.constant(wide, node.get<float>("bias", 0.0f));
  const int above = b.emit(PwOp::kGreater, DType::kBool, {x, b.constant(wide, lambda)});
  const int below = b.emit(PwOp::kLess, DType::kBool, {x, b.constant(wide, -lambda)});
  const int lowered = b.emit(PwOp::kSub, wide, {x, bias}), raised = b.emit(PwOp::kAdd, wide, {x, bias});
  const int otherwise = b.emit(PwOp::kWhere, wide, {above, lowered, b.constant(wide, 0)});
  return b.finish(b.cast(b.emit(PwOp::kWhere, wide, {below, raised, otherwise}), t));
}

Elementwise gelu(const NodeView& node) {
  ProgramBuilder b(node);
  const std::string approximate = node.get<std::string>("approximate", "none");
  require(approximate == "none" || approximate == "tanh", "attribute `approximate` is '", approximate,
          "', required none or tanh");
  const int x = b.load(0);
  return b.finish(b.emit(approximate == "tanh" ? PwOp::kGeluTanh : PwOp::kGelu, b.dtype_of(x), {x}));
}

// gelu(x + bias), the sum kept in f32 (f64).
template <PwOp op>
Elementwise biased(const NodeView& node) {
  ProgramBuilder b(node);
  const int x = b.load(0);
  const DType t = b.dtype_of(x), wide = t == DType::kF64 ? t : DType::kF32;
  require(is_float(t), "input 0 is ", name_of(t), ", required a floating type");
  int value = b.cast(x, wide);
  if (node.has_input(1)) value = b.emit(PwOp::kAdd, wide, {value, b.cast(b.load(1), wide)});
  return b.finish(b.cast(b.emit(op, wide, {value}), t));
}

const Register ops[] = {
    Register(elementwise<leaky_relu>("LeakyRelu", 6)),
    Register(elementwise<elu>("Elu", 6)),
    Register(elementwise<celu>("Celu", 12)),
    Register(elementwise<selu>("Selu", 6)),
    Register(elementwise<thresholded_relu>("ThresholdedRelu", 10)),
    Register(elementwise<hard_sigmoid>("HardSigmoid", 6)),
    Register(elementwise<swish>("Swish", 24)),
    Register(elementwise<shrink>("Shrink", 9)),
    Register(elementwise<gelu>("Gelu", 20)),
    Register(elementwise<gelu>(spec::Gelu::kName, spec::Gelu::kSince, spec::kVersion, spec::kDomain)),
    Register(elementwise<gelu>("Gelu", 1, 1, "com.microsoft")),
    Register(elementwise<quick_gelu>("QuickGelu", 1, 1, "com.microsoft")),
    Register(elementwise<biased<PwOp::kGelu>>("BiasGelu", 1, 1, "com.microsoft")),
    Register(elementwise<biased<PwOp::kGeluTanh>>("FastGelu", 1, 1, "com.microsoft")),
};

}  // namespace
}  // namespace cuvil
