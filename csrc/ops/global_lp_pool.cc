// GlobalLpPool, opset 1 and later: a reduction for the usual norms, else a pool with one window.
#include "kernels/pool.cuh"
#include "ops/norm_order.h"
#include "ops/reduce_passes.h"

namespace cuvil {
namespace {

std::string supports(const NodeView& node) {
  const DType t = node.input_dtype(0);
  if (!is_float(t)) return concat("input 0 is ", name_of(t), "; f32, f16, bf16 or f64 is required");
  if (const float p = norm_order(node); !(p > 0)) return concat("p is ", p);
  return "";
}

class GlobalLpPool : public Op {
 public:
  explicit GlobalLpPool(const NodeView& node) : norm_(norm_order(node)) {}

  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0);
    const int rank = x.shape.rank();
    require(rank >= 2, "X has shape ", x.shape.to_string(), "; [N, C, ...] is required");
    Dims shape = x.shape;
    for (int i = 2; i < rank; ++i) shape[i] = 1;
    const Tensor y = ctx.output(0, shape);
    if (y.size() == 0) return;
    const int64_t planes = x.shape.product(0, 2), pixels = x.shape.product(2, rank);
    if (norm_ == 1 || norm_ == 2) {
      const plan::ReducePlan plan = plan::reduce(Dims{planes, pixels}, {1}, false, false);
      return run_reduce(ctx, norm_ == 1 ? Reduction::kL1 : Reduction::kL2, plan, x.dtype, x.data, y.data);
    }
    require(pixels <= INT_MAX / 2, "X of shape ", x.shape.to_string(), " has planes too large for p = ", norm_);
    PoolParams p;
    p.x = x.data, p.y = y.data;
    p.dtype = x.dtype;
    p.norm = norm_;
    p.n = planes, p.c = 1;
    p.in[2] = p.kernel[2] = static_cast<int>(pixels);
    CUVIL_CUDA(launch_pool(p, ctx.stream()));
  }

 private:
  float norm_;
};

const Register global_lp_pool{{.type = "GlobalLpPool", .supports = supports, .create = make_op<GlobalLpPool>}};

}  // namespace
}  // namespace cuvil
