// Residual sum and normalisation in one kernel: cuvil::LayerNorm, and ONNX Runtime's SkipLayerNormalization and
// SkipSimplifiedLayerNormalization.
#include "kernels/layer_norm.cuh"
#include "ops/norm_shapes.h"
#include "ops/op.h"

namespace cuvil {
namespace {

// Where an op of the family keeps its operands; -1 where it has none.
struct Signature {
  int scale, bias, skip, skip_bias;
  int mean, inv_std, sum;  // outputs
};

Signature signature_of(const std::string& op_type) {
  if (op_type == "SkipLayerNormalization") return {2, 3, 1, 4, 1, 2, 3};
  if (op_type == "SkipSimplifiedLayerNormalization") return {2, -1, 1, 3, -1, 2, 3};
  return {1, 2, 3, 4, -1, -1, 1};  // cuvil::LayerNorm
}

std::string supports(const NodeView& node) {
  if (std::string reason = one_float_type(node); !reason.empty()) return reason;
  const Signature at = signature_of(node.op_type());
  for (int i : {at.scale, at.bias, at.skip_bias}) {
    if (std::string reason = i < 0 ? "" : suffix_reason(node, i, -1); !reason.empty()) return reason;
  }
  if (std::string reason = suffix_reason(node, at.skip, 0); !reason.empty()) return reason;
  if (node.op_type() == "SkipSimplifiedLayerNormalization" && node.has_output(1)) {
    return "output 1 (mean) is wanted; the RMS form computes none";
  }
  for (int i : {at.mean, at.inv_std}) {
    if (i > 0 && node.has_output(i) && node.output_dtype(i) != DType::kF32) {
      return concat("output ", i, " is ", name_of(node.output_dtype(i)), "; statistics are f32");
    }
  }
  return "";
}

class SkipLayerNorm : public Op {
 public:
  explicit SkipLayerNorm(const NodeView& node)
      : at_(signature_of(node.op_type())),
        // cuvil::LayerNorm always carries both attributes; the others have a default of their own, and no `rms`.
        epsilon_(node.get<float>("epsilon", 1e-12f)),
        rms_(node.get<int64_t>("rms", node.op_type() == "SkipSimplifiedLayerNormalization") != 0) {}

  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0), scale = ctx.input(at_.scale);
    const int rank = x.shape.rank();
    require(rank > 0, "input 0 is a scalar; a tensor with an axis to normalize is required");
    LayerNormParams p{.x = x.data, .scale = scale.data, .dtype = x.dtype, .epsilon = epsilon_, .rms = rms_};
    p.rows = x.shape.product(0, rank - 1);
    p.n = x.shape[rank - 1];
    p.scale_size = suffix_size("scale", scale.shape, x.shape, rank - 1);
    if (at_.bias > 0 && ctx.has_input(at_.bias)) {
      const Tensor bias = ctx.input(at_.bias);
      p.bias = bias.data;
      p.bias_size = suffix_size("bias", bias.shape, x.shape, rank - 1);
    }
    if (ctx.has_input(at_.skip)) {
      const Tensor skip = ctx.input(at_.skip);
      const int64_t size = suffix_size("skip", skip.shape, x.shape, 0);
      const int skip_rank = skip.shape.rank();
      require(skip_rank > 0 && skip.shape[skip_rank - 1] == p.n, "skip has shape ", skip.shape.to_string(),
              "; its last dimension must be ", p.n);
      p.skip = skip.data;
      p.skip_rows = p.n > 0 ? size / p.n : 1;
    }
    if (ctx.has_input(at_.skip_bias)) {
      const Tensor skip_bias = ctx.input(at_.skip_bias);
      require(skip_bias.size() == p.n, "the skip bias has shape ", skip_bias.shape.to_string(), "; [", p.n,
              "] is required");
      p.skip_bias = skip_bias.data;
    }
    p.y = ctx.output(0, x.shape).data;
    const Dims statistics = statistics_shape(x.shape, rank - 1);
    if (at_.mean > 0 && ctx.has_output(at_.mean)) p.mean = ctx.output(at_.mean, statistics).as<float>();
    if (at_.inv_std > 0 && ctx.has_output(at_.inv_std)) p.inv_std = ctx.output(at_.inv_std, statistics).as<float>();
    if (ctx.has_output(at_.sum)) p.sum = ctx.output(at_.sum, x.shape).data;
    CUVIL_CUDA(launch_layer_norm(p, ctx.stream()));
  }

 private:
  Signature at_;
  float epsilon_;
  bool rms_;
};

OpEntry entry(const char* domain, const char* type) {
  return {
      .domain = domain, .type = type, .supports = supports, .create = make_op<SkipLayerNorm>, .may_inplace = {{0, 0}}};
}

const Register layer_norm{entry("cuvil", "LayerNorm")};
const Register skip_layer_norm{entry("com.microsoft", "SkipLayerNormalization")};
const Register skip_simplified{entry("com.microsoft", "SkipSimplifiedLayerNormalization")};

}  // namespace
}  // namespace cuvil
