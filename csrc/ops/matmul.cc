// MatMul (any rank, broadcast batches) and com.microsoft FusedMatMul, once named TransposeMatMul (the same with
// alpha and transposed operands).
#include "ops/gemm_engine.h"
#include "plan/matmul_shape.h"

namespace cuvil {
namespace {

class MatMul : public Op {
 public:
  explicit MatMul(const NodeView& node)
      : alpha_(node.get<float>("alpha", 1.f)),
        trans_a_(node.get<int64_t>("transA", 0) != 0),
        trans_b_(node.get<int64_t>("transB", 0) != 0),
        b_constant_(node.constant_input(1).has_value()) {}

  void compute(OpContext& ctx) override {
    const Tensor a = ctx.input(0), b = ctx.input(1);
    const MatMulShape s = matmul_shape(a.shape, b.shape, trans_a_, trans_b_);
    const Tensor y = ctx.output(0, s.output);
    if (y.size() == 0) return;
    GemmProblem problem;
    problem.dtype = a.dtype;
    problem.m = s.m, problem.n = s.n, problem.k = s.k;
    problem.trans_a = trans_a_, problem.trans_b = trans_b_;
    problem.batch = s.batch, problem.stride_a = s.stride_a, problem.stride_b = s.stride_b;
    problem.tf32 = ctx.allow_tf32();
    const int64_t bytes = static_cast<int64_t>(size_of(a.dtype));
    std::vector<GemmOperands> all;
    for (const MatMulShape::Call& call : s.calls) {
      GemmOperands& o = all.emplace_back();
      o.a = a.as<char>() + call.a * bytes;
      o.b = b.as<char>() + call.b * bytes;
      o.b_constant = b_constant_;
      o.d = y.as<char>() + call.d * bytes;
      o.alpha = alpha_;
    }
    ctx.shared<GemmEngine>().run(ctx, problem, all);
  }

 private:
  float alpha_;
  bool trans_a_, trans_b_, b_constant_;
};

std::string supports(const NodeView& node) {
  if (node.get<int64_t>("transBatchA", 0) || node.get<int64_t>("transBatchB", 0))
    return "transBatchA and transBatchB are not supported";
  if (node.input_dtype(0) != node.input_dtype(1)) return "the operands' types differ";
  return gemm_dtype_reason(node.input_dtype(0), "input 0");
}

const Register matmul({.domain = "", .type = "MatMul", .supports = supports, .create = make_op<MatMul>});
const Register fused(
    {.domain = "com.microsoft", .type = "FusedMatMul", .supports = supports, .create = make_op<MatMul>});
const Register transposed(
    {.domain = "com.microsoft", .type = "TransposeMatMul", .supports = supports, .create = make_op<MatMul>});

}  // namespace
}  // namespace cuvil
