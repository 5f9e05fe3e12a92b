// cuvil::GatedUnit: activation(gate) * up of the two halves of the last axis.
#include "kernels/gated_unit.cuh"

#include "generated/ops.inc"
#include "ops/activation_attr.h"
#include "ops/op.h"

namespace cuvil {
namespace {

std::string supports(const NodeView& node) {
  const DType t = node.input_dtype(0);
  if (!is_float(t)) return concat("input 0 is ", name_of(t), "; f32, f16, bf16 or f64 is required");
  if (const auto x = node.input_shape(0); x && x->rank() == 0) return "input 0 has rank 0; at least 1 is required";
  ActivationParams ignored;
  return parse_activation(node, &ignored);
}

class GatedUnit : public Op {
 public:
  explicit GatedUnit(const NodeView& node)
      : activation_(activation_of(node)), gate_first_(node.get<int64_t>("gate_first", 1) != 0) {}

  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0);
    const int rank = x.shape.rank();
    require(rank > 0 && x.shape[rank - 1] % 2 == 0, "X has shape ", x.shape.to_string(),
            "; an even last axis is required");
    Dims out = x.shape;
    out[rank - 1] /= 2;
    const Tensor y = ctx.output(0, out);
    GatedUnitParams p{.x = x.data, .y = y.data, .dtype = x.dtype, .gate_first = gate_first_, .activation = activation_};
    p.rows = x.shape.product(0, rank - 1);
    p.n = out[rank - 1];
    CUVIL_CUDA(launch_gated_unit(p, ctx.stream()));
  }

 private:
  ActivationParams activation_;
  bool gate_first_;
};

const Register gated_unit{
    {.domain = spec::kDomain, .type = spec::GatedUnit::kName, .supports = supports, .create = make_op<GatedUnit>}};

}  // namespace
}  // namespace cuvil
