// Hardmax, opset 1 and later: the position of each row's first maximum, then its one-hot vector.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/arg.cuh"
#include "kernels/one_hot.cuh"
#include "ops/op.h"

namespace cuvil {
namespace {

std::string supports(const NodeView& node) {
  const DType t = node.input_dtype(0);
  if (!is_float(t)) return concat("input 0 is ", name_of(t), "; f32, f16, bf16 or f64 is required");
  return "";
}

// 0 and 1 in device memory, which the one-hot kernel reads.
template <typename T>
DeviceBuffer zero_and_one(T zero, T one) {
  const T values[2] = {zero, one};
  return DeviceBuffer(values, sizeof(values));
}

DeviceBuffer zero_and_one(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return zero_and_one(__float2half_rn(0), __float2half_rn(1));
    case DType::kBF16:
      return zero_and_one(__float2bfloat16_rn(0), __float2bfloat16_rn(1));
    case DType::kF64:
      return zero_and_one(0.0, 1.0);
    default:
      return zero_and_one(0.0f, 1.0f);
  }
}

class Hardmax : public Op {
 public:
  explicit Hardmax(const NodeView& node)
      : flatten_(node.since_version() < 13),
        axis_(node.get<int64_t>("axis", flatten_ ? 1 : -1)),
        values_(zero_and_one(node.input_dtype(0))) {}

  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0);
    const Tensor y = ctx.output(0, x.shape);
    if (y.size() == 0) return;
    // Before opset 13 the input is a matrix [product(before axis), product(from axis)]; axis = rank is one column. A
    // scalar is one row of one element.
    const int rank = x.shape.rank();
    const int axis = rank == 0 || (flatten_ && axis_ == rank) ? rank : normalize_axis(axis_, rank);
    const int end = flatten_ || axis == rank ? rank : axis + 1;
    const int64_t outer = x.shape.product(0, axis), n = x.shape.product(axis, end), inner = x.shape.product(end, rank);
    const ArgParams arg{.x = x.data,
                        .y = static_cast<int64_t*>(ctx.scratch(static_cast<size_t>(outer * inner) * sizeof(int64_t))),
                        .dtype = x.dtype,
                        .outer = outer,
                        .n = n,
                        .inner = inner,
                        .max = true,
                        .last = false};
    CUVIL_CUDA(launch_arg(arg, ctx.stream()));
    const OneHotParams one_hot{.indices = arg.y,
                               .index_dtype = DType::kI64,
                               .values = values_.get(),
                               .y = y.data,
                               .element_size = static_cast<int>(size_of(x.dtype)),
                               .outer = outer,
                               .depth = n,
                               .inner = inner};
    CUVIL_CUDA(launch_one_hot(one_hot, ctx.stream()));
  }

 private:
  bool flatten_;
  int64_t axis_;
  DeviceBuffer values_;
};

const Register hardmax{{.type = "Hardmax", .supports = supports, .create = make_op<Hardmax>}};

}  // namespace
}  // namespace cuvil
