// CumSum (opset 11 and later) and CumProd (26 and later); the axis is a host input.
#include "kernels/cumsum.cuh"

#include "ops/params.h"

namespace cuvil {
namespace {

std::string supports(const NodeView& node) {
  const DType t = node.input_dtype(0);
  if (is_float(t) || t == DType::kI32 || t == DType::kI64) return "";
  return concat("input 0 is ", name_of(t), "; f32, f16, bf16, f64, i32 or i64 is required");
}

class CumSum : public Op {
 public:
  explicit CumSum(const NodeView& node)
      : exclusive_(node.get<int64_t>("exclusive", 0) != 0),
        reverse_(node.get<int64_t>("reverse", 0) != 0),
        product_(node.op_type() == "CumProd") {}

  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0);
    const std::vector<int64_t> axes = read_ints(ctx.input(1));
    require(axes.size() == 1, "axis holds ", axes.size(), " values; one is required");
    const int rank = x.shape.rank(), axis = normalize_axis(axes[0], rank);
    const Tensor y = ctx.output(0, x.shape);
    const CumSumParams p{.x = x.data,
                         .y = y.data,
                         .dtype = x.dtype,
                         .outer = x.shape.product(0, axis),
                         .n = x.shape[axis],
                         .inner = x.shape.product(axis + 1, rank),
                         .exclusive = exclusive_,
                         .reverse = reverse_,
                         .product = product_};
    CUVIL_CUDA(launch_cumsum(p, ctx.stream()));
  }

 private:
  bool exclusive_;
  bool reverse_;
  bool product_;
};

OpEntry entry(const char* type) {
  return {.type = type, .supports = supports, .create = make_op<CumSum>, .cpu_inputs = {1}, .may_inplace = {{0, 0}}};
}

const Register cumsum{entry("CumSum")};
const Register cumprod{entry("CumProd")};

}  // namespace
}  // namespace cuvil
