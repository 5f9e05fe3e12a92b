// LpNormalization, opset 1 and later.
#include "kernels/lp_norm.cuh"
#include "ops/op.h"

namespace cuvil {
namespace {

std::string supports(const NodeView& node) {
  const DType t = node.input_dtype(0);
  if (!is_float(t)) return concat("input 0 is ", name_of(t), "; f32, f16, bf16 or f64 is required");
  if (const int64_t p = node.get<int64_t>("p", 2); p != 1 && p != 2) return concat("p is ", p, "; 1 or 2 is required");
  return "";
}

class LpNormalization : public Op {
 public:
  explicit LpNormalization(const NodeView& node)
      : axis_(node.get<int64_t>("axis", -1)), euclidean_(node.get<int64_t>("p", 2) == 2) {}

  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0);
    const int rank = x.shape.rank(), axis = rank == 0 ? 0 : normalize_axis(axis_, rank);
    LpNormParams p;
    p.x = x.data;
    p.y = ctx.output(0, x.shape).data;
    p.dtype = x.dtype;
    p.outer = x.shape.product(0, axis);
    p.n = rank == 0 ? 1 : x.shape[axis];
    p.inner = x.shape.product(axis + 1, rank);
    p.euclidean = euclidean_;
    CUVIL_CUDA(launch_lp_norm(p, ctx.stream()));
  }

 private:
  int64_t axis_;
  bool euclidean_;
};

const Register lp_normalization{
    {.type = "LpNormalization", .supports = supports, .create = make_op<LpNormalization>, .may_inplace = {{0, 0}}}};

}  // namespace
}  // namespace cuvil
