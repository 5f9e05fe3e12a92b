// InstanceNormalization and GroupNormalization.
#include "kernels/channel_norm.cuh"

#include "ops/norm_shapes.h"
#include "ops/op.h"

namespace cuvil {
namespace {

std::string supports(const NodeView& node) {
  if (std::string reason = one_float_type(node); !reason.empty()) return reason;
  if (const int64_t stash = node.get<int64_t>("stash_type", 1); stash != 1) {
    return concat("stash_type is ", stash, "; statistics are kept in float (1)");
  }
  if (node.op_type() == "GroupNormalization" && node.get<int64_t>("num_groups", 0) <= 0) return "num_groups is absent";
  return "";
}

class ChannelNorm : public Op {
 public:
  explicit ChannelNorm(const NodeView& node)
      : instance_(node.op_type() == "InstanceNormalization"),
        groups_(node.get<int64_t>("num_groups", 0)),
        // Opset 18 gives scale and bias for each group, 21 for each channel.
        by_group_(!instance_ && node.since_version() < 21),
        epsilon_(node.get<float>("epsilon", 1e-5f)) {}

  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0), scale = ctx.input(1), bias = ctx.input(2);
    const int rank = x.shape.rank();
    require(rank >= 2, "input 0 has shape ", x.shape.to_string(), "; [N, C, ...] is required");
    const int64_t channels = x.shape[1], groups = instance_ ? channels : groups_;
    require(instance_ || channels % groups == 0, "input 0 has ", channels, " channels, which ", groups,
            " groups do not divide");
    const Dims affine{by_group_ ? groups : channels};
    require(scale.shape == affine && bias.shape == affine, "scale and bias have shapes ", scale.shape.to_string(),
            " and ", bias.shape.to_string(), "; ", affine.to_string(), " is required");
    ChannelNormParams p{.x = x.data, .scale = scale.data, .bias = bias.data, .dtype = x.dtype};
    p.y = ctx.output(0, x.shape).data;
    p.batch = x.shape[0];
    p.groups = groups;
    p.channels = groups ? channels / groups : 0;
    p.inner = x.shape.product(2, rank);
    p.affine_by_group = by_group_;
    p.epsilon = epsilon_;
    CUVIL_CUDA(launch_channel_norm(p, ctx.stream()));
  }

 private:
  bool instance_;
  int64_t groups_;
  bool by_group_;
  float epsilon_;
};

OpEntry entry(const char* type, int since) {
  return {.type = type, .since = since, .supports = supports, .create = make_op<ChannelNorm>, .may_inplace = {{0, 0}}};
}

const Register instance_normalization{entry("InstanceNormalization", 1)};
const Register group_normalization{entry("GroupNormalization", 18)};

}  // namespace
}  // namespace cuvil
