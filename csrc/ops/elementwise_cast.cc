// Cast, CastLike and Clip.
#include <limits>

#include "ops/narrow_cast.h"
#include "ops/program_builder.h"

namespace cuvil {
namespace {

using jit::PwOp;

// The target is the output's dtype, which ONNX Runtime has inferred from `to` or from input 1. Attributes that matter
// to 8-bit floats only (`saturate`, `round_mode`) have no effect on the dtypes of programs.
Elementwise cast(const NodeView& node) {
  ProgramBuilder b(node);
  const DType to = node.output_dtype(0);
  require(jit::set_of(to) != 0, "cast to ", name_of(to), " is not supported");
  const int x = b.load(0);
  return b.finish(b.dtype_of(x) == to ? b.emit(PwOp::kIdentity, to, {x}) : b.cast(x, to));
}

OpEntry cast_entry(const char* type, int since) {
  OpEntry entry = elementwise<cast>(type, since);
  entry.supports = [](const NodeView& node) {
    return is_narrow_cast(node) ? narrow_cast_refusal(node) : elementwise_refusal(node, cast);
  };
  entry.create = [](const NodeView& node) {
    return is_narrow_cast(node) ? create_narrow_cast(node) : create_elementwise(node, cast);
  };
  entry.may_inplace = {};  // to ONNX Runtime an int4 tensor is as large as an int8 one of its shape
  return entry;
}

Elementwise clip_attributes(const NodeView& node) {
  ProgramBuilder b(node);
  const int x = b.load(0);
  const DType t = b.dtype_of(x);
  require(is_float(t), "Clip before opset 12 of ", name_of(t), " is not supported");
  const int low = b.constant(t, node.get<float>("min", std::numeric_limits<float>::lowest()));
  const int high = b.constant(t, node.get<float>("max", std::numeric_limits<float>::max()));
  return b.finish(b.emit(PwOp::kClip, t, {x, low, high}));
}

// Bounds are optional scalars on the device. min(max(x, low), high) with a NaN x kept.
Elementwise clip_inputs(const NodeView& node) {
  ProgramBuilder b(node);
  const int x = b.load(0);
  const DType t = b.dtype_of(x);
  const bool below = node.has_input(1), above = node.has_input(2);
  if (!below && !above) return b.finish(b.emit(PwOp::kIdentity, t, {x}));
  const int first = b.load(below ? 1 : 2);
  if (below && above) return b.finish(b.emit(PwOp::kClip, t, {x, first, b.load(2)}));
  return b.finish(b.emit(below ? PwOp::kMax : PwOp::kMin, t, {x, first}));
}

const Register ops[] = {
    Register(cast_entry("Cast", 6)),
    Register(cast_entry("CastLike", 15)),
    Register(elementwise<clip_attributes>("Clip", 6, 10)),
    Register(elementwise<clip_inputs>("Clip", 11)),
};

}  // namespace
}  // namespace cuvil
