// Slice: starts, ends, axes are attributes before opset 10, host inputs after; steps from opset 10 on.
#include "plan/slice.h"

#include "ops/copy_view.h"
#include "ops/params.h"

namespace cuvil {
namespace {

class Slice : public Op {
 public:
  explicit Slice(const NodeView& node)
      : starts_(node, "starts", 1), ends_(node, "ends", 2), axes_(node, "axes", 3), steps_(node, "steps", 4) {}

  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0);
    const plan::SlicePlan slice =
        plan::slice(x.shape, starts_.get(ctx), ends_.get(ctx), axes_.get(ctx), steps_.get(ctx));
    const Tensor y = ctx.output(0, slice.shape);
    copy_view(ctx, x.data, y.data, x.dtype, slice.view);
  }

 private:
  IntsParam starts_, ends_, axes_, steps_;
};

const Register slice{
    {.type = "Slice", .supports = supports_any_type, .create = make_op<Slice>, .cpu_inputs = {1, 2, 3, 4}}};

}  // namespace
}  // namespace cuvil
