// MeanVarianceNormalization, opset 9 and later.
#include "kernels/mean_variance.cuh"
#include "ops/copy_view.h"
#include "plan/mean_variance.h"

namespace cuvil {
namespace {

std::string supports(const NodeView& node) {
  const DType t = node.input_dtype(0);
  if (!is_float(t)) return concat("input 0 is ", name_of(t), "; f32, f16, bf16 or f64 is required");
  return "";
}

class MeanVarianceNormalization : public Op {
 public:
  explicit MeanVarianceNormalization(const NodeView& node) {
    if (!node.find("axes", &axes_)) axes_ = {0, 2, 3};
  }

  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0);
    const plan::MeanVariancePlan plan = plan::mean_variance(x.shape, axes_);
    const Tensor y = ctx.output(0, x.shape);
    if (y.size() == 0) return;
    MeanVarianceParams p{
        .x = x.data, .y = y.data, .dtype = x.dtype, .segments = plan.segments, .rows = plan.rows, .width = plan.width};
    if (plan.copied) {
      p.x = p.y = ctx.scratch(x.bytes());
      copy_view(ctx, x.data, p.y, x.dtype, plan.gather);
    }
    CUVIL_CUDA(launch_mean_variance(p, ctx.stream()));
    if (plan.copied) copy_view(ctx, p.y, y.data, x.dtype, plan.scatter);
  }

 private:
  std::vector<int64_t> axes_;
};

const Register mean_variance_normalization{{.type = "MeanVarianceNormalization",
                                            .since = 9,
                                            .supports = supports,
                                            .create = make_op<MeanVarianceNormalization>}};

}  // namespace
}  // namespace cuvil
