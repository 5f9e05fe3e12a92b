// cuvil::FusedMatMul: Y = act(A op(B) + bias + Z).
#include "kernels/broadcast_scale.cuh"
#include "ops/activation_attr.h"
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
    const void* bias = bias_of(ctx, s.n);
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
  // The bias as n values, or null.
  static const void* bias_of(OpContext& ctx, int64_t n) {
    if (!ctx.has_input(kBias)) return nullptr;
    const Tensor bias = ctx.input(kBias);
    const int rank = bias.shape.rank();
    const bool row = rank == 0 || bias.shape[rank - 1] == bias.size();  // every other dimension is 1
    require(row && (bias.size() == n || bias.size() == 1), "bias of shape ", bias.shape.to_string(),
            " does not broadcast along ", n, " columns");
    if (bias.size() == n) return bias.data;
    BroadcastScaleParams b;
    b.y = ctx.scratch(static_cast<size_t>(n) * size_of(bias.dtype));
    b.c = bias.data;
    b.dtype = bias.dtype;
    b.rows = 1, b.cols = n;
    CUVIL_CUDA(launch_broadcast_scale(b, ctx.stream()));
    return b.y;
  }

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
