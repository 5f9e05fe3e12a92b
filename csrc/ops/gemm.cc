// Gemm: Y = alpha * op(A) op(B) + beta * C, C broadcast to [M, N]; and com.microsoft FusedGemm, an activation of it.
#include "kernels/broadcast_scale.cuh"
#include "ops/activation_attr.h"
#include "ops/gemm_engine.h"

namespace cuvil {
namespace {

// FusedGemm names its activation as cuvil's ops do; the parameters are attributes of their own. Gemm has none.
// "" and *out set, or the reason.
std::string parse_fused_activation(const NodeView& node, ActivationParams* out) {
  const std::string name = node.get<std::string>("activation", "");
  for (const ActivationName& known : kActivationNames) {
    if (name != known.name) continue;
    *out = {known.kind, node.get<float>("activation_alpha", known.a), node.get<float>("activation_beta", known.b)};
    return "";
  }
  return concat("activation \"", name, "\" is not served");
}

class Gemm : public Op {
 public:
  explicit Gemm(const NodeView& node)
      : alpha_(node.get<float>("alpha", 1.f)),
        beta_(node.get<float>("beta", 1.f)),
        trans_a_(node.get<int64_t>("transA", 0) != 0),
        trans_b_(node.get<int64_t>("transB", 0) != 0),
        b_constant_(node.constant_input(1).has_value()) {
    const std::string reason = parse_fused_activation(node, &activation_);
    require(reason.empty(), reason);
  }

  void compute(OpContext& ctx) override {
    const Tensor a = ctx.input(0), b = ctx.input(1);
    require(a.shape.rank() == 2 && b.shape.rank() == 2, "Gemm needs matrices, got shapes ", a.shape.to_string(),
            " and ", b.shape.to_string());
    GemmProblem p;
    p.dtype = a.dtype;
    p.trans_a = trans_a_, p.trans_b = trans_b_;
    p.m = a.shape[trans_a_ ? 1 : 0];
    p.k = a.shape[trans_a_ ? 0 : 1];
    p.n = b.shape[trans_b_ ? 0 : 1];
    const int64_t k_of_b = b.shape[trans_b_ ? 1 : 0];
    require(p.k == k_of_b, "Gemm of ", a.shape.to_string(), " and ", b.shape.to_string(), " (transA=", trans_a_,
            ", transB=", trans_b_, "): inner dimensions ", p.k, " and ", k_of_b, " differ");
    p.tf32 = ctx.allow_tf32();
    p.activation = activation_.kind;
    p.activation_a = activation_.a, p.activation_b = activation_.b;
    const Tensor y = ctx.output(0, {p.m, p.n});
    if (y.size() == 0) return;
    GemmOperands o;
    o.a = a.data, o.b = b.data, o.d = y.data;
    o.alpha = alpha_;
    o.b_constant = b_constant_;
    if (ctx.has_input(2) && beta_ != 0) add_c(ctx, ctx.input(2), y, p, o);
    ctx.shared<GemmEngine>().run(ctx, p, o);
  }

 private:
  // Decides how C enters: as the epilogue's bias, read in place as a full matrix, or broadcast into Y beforehand.
  void add_c(OpContext& ctx, const Tensor& c, const Tensor& y, GemmProblem& p, GemmOperands& o) const {
    const int rank = c.shape.rank();
    const int64_t cols = rank >= 1 ? c.shape[rank - 1] : 1, rows = rank >= 2 ? c.shape[rank - 2] : 1;
    require(rank <= 2 && (cols == 1 || cols == p.n) && (rows == 1 || rows == p.m), "Gemm's C of shape ",
            c.shape.to_string(), " does not broadcast to ", y.shape.to_string());
    if (rows == 1 && cols == p.n && beta_ == 1) {
      p.bias = true;
      o.bias = c.data;
    } else if (rows == p.m && cols == p.n && p.k > 0) {
      p.accumulate = true;
      o.c = c.data;
      o.beta = beta_;
    } else {
      BroadcastScaleParams b;
      b.y = y.data;
      b.c = c.data;
      b.dtype = c.dtype;
      b.rows = p.m, b.cols = p.n;
      b.stride_row = rows == 1 ? 0 : cols;
      b.stride_col = cols == 1 ? 0 : 1;
      b.scale = beta_;
      CUVIL_CUDA(launch_broadcast_scale(b, ctx.stream()));
      p.accumulate = true;
      o.c = y.data;
    }
  }

  float alpha_, beta_;
  bool trans_a_, trans_b_, b_constant_;
  ActivationParams activation_;
};

std::string supports(const NodeView& node) {
  ActivationParams ignored;
  if (std::string reason = parse_fused_activation(node, &ignored); !reason.empty()) return reason;
  if (node.input_dtype(0) != node.input_dtype(1)) return "the operands' types differ";
  if (node.has_input(2) && node.input_dtype(2) != node.input_dtype(0)) return "C's type is not that of A";
  return gemm_dtype_reason(node.input_dtype(0), "input 0");
}

// Opsets below 7 broadcast C by an attribute.
const Register gemm({.domain = "", .type = "Gemm", .since = 7, .supports = supports, .create = make_op<Gemm>});
const Register fused({.domain = "com.microsoft", .type = "FusedGemm", .supports = supports, .create = make_op<Gemm>});

}  // namespace
}  // namespace cuvil
