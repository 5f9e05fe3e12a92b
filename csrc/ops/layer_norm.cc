// LayerNormalization, RMSNormalization, and ONNX Runtime's SimplifiedLayerNormalization (RMS with a statistics output;
// ONNX Runtime's own optimizers write it in the default domain).
#include "kernels/layer_norm.cuh"

#include "ops/norm_shapes.h"
#include "ops/op.h"

namespace cuvil {
namespace {

std::string supports(const NodeView& node) {
  if (std::string reason = one_float_type(node); !reason.empty()) return reason;
  const int64_t stash = node.get<int64_t>("stash_type", 1);
  if (stash != 1) return concat("stash_type is ", stash, "; statistics are kept in float (1)");
  const int64_t axis = node.get<int64_t>("axis", -1);
  for (int i = 1; i <= 2; ++i) {
    if (std::string reason = suffix_reason(node, i, axis); !reason.empty()) return reason;
  }
  for (int i = 1; i <= 2; ++i) {
    if (node.has_output(i) && node.output_dtype(i) != DType::kF32) {
      return concat("output ", i, " is ", name_of(node.output_dtype(i)), "; statistics are f32");
    }
  }
  return "";
}

class LayerNormalization : public Op {
 public:
  explicit LayerNormalization(const NodeView& node)
      : rms_(node.op_type() != "LayerNormalization"),
        axis_(node.get<int64_t>("axis", -1)),
        epsilon_(node.get<float>("epsilon", 1e-5f)) {}

  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0), scale = ctx.input(1);
    const int axis = normalize_axis(axis_, x.shape.rank());
    LayerNormParams p{.x = x.data, .scale = scale.data, .dtype = x.dtype, .epsilon = epsilon_, .rms = rms_};
    p.rows = x.shape.product(0, axis);
    p.n = x.shape.product(axis, x.shape.rank());
    p.scale_size = suffix_size("scale", scale.shape, x.shape, axis);
    if (ctx.has_input(2)) {
      const Tensor bias = ctx.input(2);
      p.bias = bias.data;
      p.bias_size = suffix_size("bias", bias.shape, x.shape, axis);
    }
    p.y = ctx.output(0, x.shape).data;
    // Outputs: Y, Mean, InvStdDev; the RMS form has no mean.
    const Dims statistics = statistics_shape(x.shape, axis);
    if (!rms_ && ctx.has_output(1)) p.mean = ctx.output(1, statistics).as<float>();
    const int inv_std = rms_ ? 1 : 2;
    if (ctx.has_output(inv_std)) p.inv_std = ctx.output(inv_std, statistics).as<float>();
    CUVIL_CUDA(launch_layer_norm(p, ctx.stream()));
  }

 private:
  bool rms_;
  int64_t axis_;
  float epsilon_;
};

OpEntry entry(const char* type) {
  return {.type = type, .supports = supports, .create = make_op<LayerNormalization>, .may_inplace = {{0, 0}}};
}

const Register layer_normalization{entry("LayerNormalization")};
const Register rms_normalization{entry("RMSNormalization")};
const Register simplified{entry("SimplifiedLayerNormalization")};

}  // namespace
}  // namespace cuvil
