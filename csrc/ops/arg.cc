// ArgMax and ArgMin. A NaN counts as the extremum, as in NumPy; ONNX leaves it open.
#include "kernels/arg.cuh"

#include "ops/params.h"

namespace cuvil {
namespace {

std::string supports(const NodeView& node) {
  switch (node.input_dtype(0)) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
    case DType::kF64:
    case DType::kI32:
    case DType::kI64:
    case DType::kI8:
    case DType::kU8:
      return "";
    default:
      return concat("input 0 is ", name_of(node.input_dtype(0)),
                    "; f32, f16, bf16, f64, i32, i64, i8 or u8 is required");
  }
}

class Arg : public Op {
 public:
  explicit Arg(const NodeView& node)
      : max_(node.op_type() == "ArgMax"),
        last_(node.get<int64_t>("select_last_index", 0) != 0),
        keep_dims_(node.get<int64_t>("keepdims", 1) != 0),
        axis_(node.get<int64_t>("axis", 0)) {}

  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0);
    // A scalar has one element, at index 0.
    const Dims in = x.shape.rank() == 0 ? Dims{1} : x.shape;
    const int axis = normalize_axis(axis_, in.rank());
    Dims shape;
    for (int i = 0; i < x.shape.rank(); ++i)
      if (i != axis || keep_dims_) shape.push_back(i == axis ? 1 : in[i]);
    const Tensor y = ctx.output(0, shape);
    if (y.size() == 0) return;
    require(in[axis] > 0, max_ ? "ArgMax" : "ArgMin", ": axis ", axis, " of ", in.to_string(), " is empty");
    const ArgParams p{
        x.data, y.as<int64_t>(), x.dtype, in.product(0, axis), in[axis], in.product(axis + 1, in.rank()), max_, last_};
    CUVIL_CUDA(launch_arg(p, ctx.stream()));
  }

 private:
  bool max_;
  bool last_;
  bool keep_dims_;
  int64_t axis_;
};

const Register arg_max{{.type = "ArgMax", .supports = supports, .create = make_op<Arg>}};
const Register arg_min{{.type = "ArgMin", .supports = supports, .create = make_op<Arg>}};

}  // namespace
}  // namespace cuvil
