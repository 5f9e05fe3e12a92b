// Softmax and LogSoftmax, opset 1 and later.
#include "kernels/softmax.cuh"

#include "ops/op.h"

namespace cuvil {
namespace {

std::string supports(const NodeView& node) {
  const DType t = node.input_dtype(0);
  if (!is_float(t)) return concat("input 0 is ", name_of(t), "; f32, f16, bf16 or f64 is required");
  return "";
}

class Softmax : public Op {
 public:
  explicit Softmax(const NodeView& node)
      : log_(node.op_type() == "LogSoftmax"),
        flatten_(node.since_version() < 13),
        axis_(node.get<int64_t>("axis", flatten_ ? 1 : -1)) {}

  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0);
    const Tensor y = ctx.output(0, x.shape);
    const int rank = x.shape.rank();
    SoftmaxParams p{.x = x.data, .y = y.data, .dtype = x.dtype, .log = log_};
    if (rank == 0) {
      p.outer = p.n = 1;  // a scalar is one row of one element
    } else if (flatten_) {
      // Before opset 13 the input is a matrix [product(before axis), product(from axis)]; axis = rank is one column.
      const int axis = axis_ == rank ? rank : normalize_axis(axis_, rank);
      p.outer = x.shape.product(0, axis);
      p.n = x.shape.product(axis, rank);
    } else {
      const int axis = normalize_axis(axis_, rank);
      p.outer = x.shape.product(0, axis);
      p.n = x.shape[axis];
      p.inner = x.shape.product(axis + 1, rank);
    }
    CUVIL_CUDA(launch_softmax(p, ctx.stream()));
  }

 private:
  bool log_;
  bool flatten_;
  int64_t axis_;
};

OpEntry entry(const char* type) {
  return {.type = type, .supports = supports, .create = make_op<Softmax>, .may_inplace = {{0, 0}}};
}

const Register softmax{entry("Softmax")};
const Register log_softmax{entry("LogSoftmax")};

}  // namespace
}  // namespace cuvil
