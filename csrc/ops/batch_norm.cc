// BatchNormalization at inference, where no convolution took it in.
#include "kernels/batch_norm.cuh"

#include "ops/op.h"

namespace cuvil {
namespace {

enum Input { kX, kScale, kBias, kMean, kVariance };

class BatchNormalization : public Op {
 public:
  explicit BatchNormalization(const NodeView& node) : epsilon_(node.get<float>("epsilon", 1e-5f)) {}

  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(kX);
    require(x.shape.rank() >= 1, "X is a scalar");
    const int64_t channels = x.shape.rank() >= 2 ? x.shape[1] : 1;
    BatchNormParams p;
    const Tensor scale = statistic(ctx, kScale, channels), bias = statistic(ctx, kBias, channels);
    const Tensor mean = statistic(ctx, kMean, channels), variance = statistic(ctx, kVariance, channels);
    const Tensor y = ctx.output(0, x.shape);
    p.x = x.data, p.y = y.data;
    p.dtype = x.dtype;
    p.scale = scale.data, p.bias = bias.data, p.mean = mean.data, p.variance = variance.data;
    p.scale_dtype = scale.dtype, p.mean_dtype = mean.dtype;
    p.n = x.shape[0];
    p.channels = channels;
    p.inner = x.shape.rank() > 2 ? x.shape.product(2, x.shape.rank()) : 1;
    p.epsilon = epsilon_;
    CUVIL_CUDA(launch_batch_norm(p, ctx.stream()));
  }

 private:
  static Tensor statistic(OpContext& ctx, int input, int64_t channels) {
    const Tensor t = ctx.input(input);
    require(t.shape.rank() == 1 && t.shape[0] == channels, "input ", input, " has shape ", t.shape.to_string(), " for ",
            channels, " channels");
    return t;
  }

  float epsilon_;
};

std::string supports(const NodeView& node) {
  if (node.get<int64_t>("training_mode", 0) != 0) return "training_mode is not supported";
  if (node.get<int64_t>("spatial", 1) != 1) return "spatial=0 is not supported";
  for (int i = 1; i < 5; ++i)
    if (node.has_output(i)) return "outputs other than Y are not supported";
  const DType x = node.input_dtype(kX);
  if (!is_float(x)) return concat("input 0 is ", name_of(x), "; f32, f16, bf16 and f64 are served");
  for (int i = kScale; i <= kVariance; ++i)
    if (const DType t = node.input_dtype(i); t != x && t != DType::kF32)
      return concat("input ", i, " is ", name_of(t), " where X is ", name_of(x));
  if (node.input_dtype(kScale) != node.input_dtype(kBias)) return "scale and B differ in type";
  if (node.input_dtype(kMean) != node.input_dtype(kVariance)) return "input_mean and input_var differ in type";
  return "";
}

// Opsets below 7 have a training switch of another meaning.
const Register batch_norm({.domain = "",
                           .type = "BatchNormalization",
                           .since = 7,
                           .supports = supports,
                           .create = make_op<BatchNormalization>,
                           .may_inplace = {{kX, 0}}});

}  // namespace
}  // namespace cuvil
