// OneHot, opset 9 and later; the depth is a host input.
#include "kernels/one_hot.cuh"

#include "ops/params.h"

namespace cuvil {
namespace {

constexpr int kIndices = 0, kDepth = 1, kValues = 2;

std::string supports(const NodeView& node) {
  const DType index = node.input_dtype(kIndices), depth = node.input_dtype(kDepth);
  if (index != DType::kI32 && index != DType::kI64 && index != DType::kF32)
    return concat("input 0 is ", name_of(index), "; i32, i64 or f32 is required");
  if (depth != DType::kI32 && depth != DType::kI64 && depth != DType::kF32)
    return concat("input 1 is ", name_of(depth), "; i32, i64 or f32 is required");
  return require_movable(node, kValues);
}

class OneHot : public Op {
 public:
  explicit OneHot(const NodeView& node) : axis_(node.get<int64_t>("axis", -1)) {}

  void compute(OpContext& ctx) override {
    const Tensor indices = ctx.input(kIndices), depths = ctx.input(kDepth), values = ctx.input(kValues);
    require(depths.size() == 1, "OneHot: depth holds ", depths.size(), " values; one is required");
    const int64_t depth =
        depths.dtype == DType::kF32 ? static_cast<int64_t>(*depths.as<float>()) : read_ints(depths)[0];
    require(depth > 0, "OneHot: depth is ", depth);
    require(values.size() == 2, "OneHot: values holds ", values.size(), " values; two are required");
    const int rank = indices.shape.rank(), axis = normalize_axis(axis_, rank + 1);
    Dims shape;
    for (int i = 0; i <= rank; ++i) shape.push_back(i == axis ? depth : indices.shape[i < axis ? i : i - 1]);
    const Tensor y = ctx.output(0, shape);
    const OneHotParams p{.indices = indices.data,
                         .index_dtype = indices.dtype,
                         .values = values.data,
                         .y = y.data,
                         .element_size = static_cast<int>(size_of(values.dtype)),
                         .outer = indices.shape.product(0, axis),
                         .depth = depth,
                         .inner = indices.shape.product(axis, rank)};
    CUVIL_CUDA(launch_one_hot(p, ctx.stream()));
  }

 private:
  int64_t axis_;
};

const Register one_hot{{.type = "OneHot", .supports = supports, .create = make_op<OneHot>, .cpu_inputs = {kDepth}}};

}  // namespace
}  // namespace cuvil
