// ReduceSum, Mean, Max, Min, Prod, L1, L2, SumSquare, LogSum, LogSumExp.
// Axes are an attribute before opset 18 (13 for ReduceSum), a host input after.
#include "ops/params.h"
#include "ops/reduce_passes.h"

namespace cuvil {
namespace {

template <Reduction kKind>
std::string supports(const NodeView& node) {
  const DType t = node.input_dtype(0);
  const bool extremum = kKind == Reduction::kMax || kKind == Reduction::kMin;
  const bool integer = t == DType::kI32 || t == DType::kI64;
  const bool narrow = t == DType::kI8 || t == DType::kU8 || t == DType::kBool;
  if (is_float(t) || (integer && kKind != Reduction::kLogSumExp) || (narrow && extremum)) return "";
  return concat("input 0 is ", name_of(t), "; ",
                kKind == Reduction::kLogSumExp ? "f32, f16, bf16 or f64"
                : extremum                     ? "f32, f16, bf16, f64, i32, i64, i8, u8 or bool"
                                               : "f32, f16, bf16, f64, i32 or i64",
                " is required");
}

template <Reduction kKind>
class Reduce : public Op {
 public:
  explicit Reduce(const NodeView& node)
      : axes_(node, "axes", 1),
        keep_dims_(node.get<int64_t>("keepdims", 1) != 0),
        noop_(node.get<int64_t>("noop_with_empty_axes", 0) != 0) {}

  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0);
    const plan::ReducePlan plan = plan::reduce(x.shape, axes_.get(ctx), keep_dims_, noop_);
    const Tensor y = ctx.output(0, plan.shape);
    if (y.size() == 0) return;
    run_reduce(ctx, kKind, plan, x.dtype, x.data, y.data);
  }

 private:
  IntsParam axes_;
  bool keep_dims_;
  bool noop_;
};

template <Reduction kKind>
OpEntry entry(const char* type) {
  return {.type = type, .supports = supports<kKind>, .create = make_op<Reduce<kKind>>, .cpu_inputs = {1}};
}

const Register sum{entry<Reduction::kSum>("ReduceSum")};
const Register mean{entry<Reduction::kMean>("ReduceMean")};
const Register max{entry<Reduction::kMax>("ReduceMax")};
const Register min{entry<Reduction::kMin>("ReduceMin")};
const Register prod{entry<Reduction::kProd>("ReduceProd")};
const Register l1{entry<Reduction::kL1>("ReduceL1")};
const Register l2{entry<Reduction::kL2>("ReduceL2")};
const Register sum_square{entry<Reduction::kSumSquare>("ReduceSumSquare")};
const Register log_sum{entry<Reduction::kLogSum>("ReduceLogSum")};
const Register log_sum_exp{entry<Reduction::kLogSumExp>("ReduceLogSumExp")};

}  // namespace
}  // namespace cuvil
