// com.microsoft GroupNorm and SkipGroupNorm: channels-last group normalisation of diffusion models.
#include "kernels/group_norm.cuh"

#include "ops/op.h"

namespace cuvil {
namespace {

enum Input { kX, kGamma, kBeta, kSkip, kBias };

std::string supports(const NodeView& node) {
  const DType t = node.input_dtype(kX), affine = node.input_dtype(kGamma);
  if (t != DType::kF32 && t != DType::kF16) return concat("input 0 is ", name_of(t), "; f32 or f16 is required");
  if (affine != DType::kF32 && affine != DType::kF16)
    return concat("input 1 is ", name_of(affine), "; f32 or f16 is required");
  if (node.input_dtype(kBeta) != affine)
    return concat("input 2 is ", name_of(node.input_dtype(kBeta)), ", input 1 ", name_of(affine));
  for (int i : {kSkip, kBias})
    if (node.has_input(i) && node.input_dtype(i) != t)
      return concat("input ", i, " is ", name_of(node.input_dtype(i)), ", input 0 ", name_of(t));
  if (node.get<int64_t>("channels_last", 1) != 1) return "channels_last is 0; 1 is required";
  if (node.get<int64_t>("groups", 0) <= 0) return "groups is absent or not positive";
  const int64_t activation = node.get<int64_t>("activation", 0);
  if (activation != 0 && activation != 1)
    return concat("activation is ", activation, "; 0 (none) or 1 (SiLU) is required");
  return "";
}

class GroupNorm : public Op {
 public:
  explicit GroupNorm(const NodeView& node)
      : groups_(node.get<int64_t>("groups", 0)),
        silu_(node.get<int64_t>("activation", 0) == 1),
        epsilon_(node.get<float>("epsilon", 1e-5f)) {}

  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(kX), gamma = ctx.input(kGamma), beta = ctx.input(kBeta);
    const int rank = x.shape.rank();
    require(rank >= 3, "input 0 has shape ", x.shape.to_string(), "; [N, H, W, C] is required");
    GroupNormParams p;
    p.images = x.shape[0], p.pixels = x.shape.product(1, rank - 1), p.channels = x.shape[rank - 1];
    p.groups = groups_, p.silu = silu_, p.epsilon = epsilon_;
    require(p.channels % groups_ == 0, "input 0 has ", p.channels, " channels, which ", groups_,
            " groups do not divide");
    const Dims channels{p.channels};
    require(gamma.shape == channels && beta.shape == channels, "gamma and beta have shapes ", gamma.shape.to_string(),
            " and ", beta.shape.to_string(), "; ", channels.to_string(), " is required");
    p.x = x.data, p.gamma = gamma.data, p.beta = beta.data;
    p.dtype = x.dtype, p.affine_dtype = gamma.dtype;
    if (ctx.has_input(kSkip)) {
      const Tensor skip = ctx.input(kSkip);
      // [N, C] or [N, 1, 1, C]: the same for all pixels.
      p.skip_by_image = skip.shape != x.shape;
      require(!p.skip_by_image || (skip.size() == p.images * p.channels && skip.shape.rank() >= 2 &&
                                   skip.shape[0] == p.images && skip.shape[skip.shape.rank() - 1] == p.channels),
              "the skip has shape ", skip.shape.to_string(), "; ", x.shape.to_string(), " or [", p.images, ",",
              p.channels, "] is required");
      p.skip = skip.data;
    }
    if (ctx.has_input(kBias)) {
      const Tensor bias = ctx.input(kBias);
      require(bias.shape == channels, "the bias has shape ", bias.shape.to_string(), "; ", channels.to_string(),
              " is required");
      p.bias = bias.data;
    }
    p.y = ctx.output(0, x.shape).data;
    if (ctx.has_output(1)) p.sum = ctx.output(1, x.shape).data;
    p.partial =
        static_cast<float*>(ctx.scratch(static_cast<size_t>(group_norm_scratch(p.images, p.groups)) * sizeof(float)));
    CUVIL_CUDA(launch_group_norm(p, ctx.stream()));
  }

 private:
  int64_t groups_;
  bool silu_;
  float epsilon_;
};

OpEntry entry(const char* type) {
  return {.domain = "com.microsoft", .type = type, .supports = supports, .create = make_op<GroupNorm>};
}

const Register group_norm{entry("GroupNorm")};
const Register skip_group_norm{entry("SkipGroupNorm")};

}  // namespace
}  // namespace cuvil
