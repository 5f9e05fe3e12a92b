// cuvil::FusedMatMul: Y = act(A op(B) + bias + Z).
#include "ops/activation_attr.h"
#include "ops/bias_row.h"
#include "ops/gemm_engine.h"
#include "plan/matmul_shape.h"

namespace cuvil {
namespace {

enum Input { kA, kB, kBias, kZ };

class FusedMatMul : public Op {
 public:
  explicit FusedMatMul(const NodeView& node)
      : trans_b_(node.get<int64_t>("transB", 0) != 0),
        b_constant_(node.constant_input(kB).has_value()),
        activation_(activation_of(node)) {}

  void compute(OpContext& ctx) override {
    const Tensor a = ctx.input(kA), b = ctx.input(kB);
    const MatMulShape s = matmul_shape(a.shape, b.shape, false, trans_b_);
    const Tensor y = ctx.output(0, s.output);
    if (y.size() == 0) return;
    GemmProblem p;
    p.dtype = a.dtype;
    p.m = s.m, p.n = s.n, p.k = s.k;
    p.trans_b = trans_b_;
    p.batch = s.batch, p.stride_a = s.stride_a, p.stride_b = s.stride_b;
    p.activation = activation_.kind, p.activation_a = activation_.a, p.activation_b = activation_.b;
    p.tf32 = ctx.allow_tf32();
    const void* bias = bias_row(ctx, kBias, s.n);
    p.bias = bias != nullptr;
    Tensor z;
    if (ctx.has_input(kZ)) {
      z = ctx.input(kZ);
      require(z.shape == y.shape, "Z has shape ", z.shape.to_string(), ", the product ", y.shape.to_string());
      p.accumulate = true;
    }
    const int64_t bytes = static_cast<int64_t>(size_of(a.dtype));
    std::vector<GemmOperands> all;
    for (const MatMulShape::Call& call : s.calls) {
      GemmOperands& o = all.emplace_back();
      o.a = a.as<char>() + call.a * bytes;
      o.b = b.as<char>() + call.b * bytes;
      o.b_constant = b_constant_;
      o.d = y.as<char>() + call.d * bytes;
      if (p.accumulate) o.c = z.as<char>() + call.d * bytes;
      o.bias = bias;
    }
    ctx.shared<GemmEngine>().run(ctx, p, all);
  }

 private:
  bool trans_b_, b_constant_;
  ActivationParams activation_;
};

std::string supports(const NodeView& node) {
  for (int i = 1; i <= kZ; ++i)
    if (node.has_input(i) && node.input_dtype(i) != node.input_dtype(0))
      return concat("input ", i, " is ", name_of(node.input_dtype(i)), ", input 0 ", name_of(node.input_dtype(0)));
  ActivationParams activation;
  if (std::string reason = parse_activation(node, &activation); !reason.empty()) return reason;
  return gemm_dtype_reason(node.input_dtype(0), "input 0");
}

const Register fused_matmul(
    {.domain = "cuvil", .type = "FusedMatMul", .supports = supports, .create = make_op<FusedMatMul>});

}  // namespace
}  // namespace cuvil
