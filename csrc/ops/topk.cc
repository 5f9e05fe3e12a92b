// TopK: k is an attribute before opset 10, a host input after. The result is always sorted.
#include "kernels/topk.cuh"

#include "ops/params.h"

namespace cuvil {
namespace {

bool served(DType t) {
  switch (t) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
    case DType::kF64:
    case DType::kI32:
    case DType::kI64:
    case DType::kI16:
    case DType::kI8:
    case DType::kU8:
      return true;
    default:
      return false;
  }
}

std::string supports(const NodeView& node) {
  const DType t = node.input_dtype(0);
  if (!served(t))
    return concat("input 0 is ", name_of(t), "; f32, f16, bf16, f64, i64, i32, i16, i8 or u8 is required");
  // Long rows are served for k up to a limit: both must be known before the node is taken.
  int64_t k = node.get<int64_t>("k", -1);
  if (const std::optional<Tensor> constant = node.constant_input(1); constant && constant->size() == 1)
    k = *constant->as<int64_t>();
  if (k >= 0 && k <= kTopKMaxOfLongRows) return "";
  const std::optional<Dims> shape = node.input_shape(0);
  if (shape && shape->rank() > 0) {
    const int64_t n = (*shape)[normalize_axis(node.get<int64_t>("axis", -1), shape->rank())];
    if (n >= 0 && n <= kTopKChunk) return "";
  }
  return concat("k is ", k < 0 ? "no constant" : std::to_string(k), " and the axis is not known to be at most ",
                kTopKChunk, "; k at most ", kTopKMaxOfLongRows, " is required there");
}

class TopK : public Op {
 public:
  explicit TopK(const NodeView& node)
      : k_(node.get<int64_t>("k", 0)),
        axis_(node.get<int64_t>("axis", -1)),
        largest_(node.get<int64_t>("largest", 1) != 0) {}

  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0);
    int64_t k = k_;
    if (ctx.has_input(1)) {
      const std::vector<int64_t> values = read_ints(ctx.input(1));
      require(values.size() == 1, "TopK: k holds ", values.size(), " values; one is required");
      k = values[0];
    }
    const int rank = x.shape.rank(), axis = normalize_axis(axis_, rank);
    require(k >= 0 && k <= x.shape[axis], "TopK: k is ", k, ", axis ", axis, " has ", x.shape[axis], " elements");
    Dims shape = x.shape;
    shape[axis] = k;
    const Tensor values = ctx.output(0, shape), indices = ctx.output(1, shape);
    const TopKParams p{.x = x.data,
                       .values = values.data,
                       .indices = indices.as<int64_t>(),
                       .dtype = x.dtype,
                       .outer = x.shape.product(0, axis),
                       .n = x.shape[axis],
                       .inner = x.shape.product(axis + 1, rank),
                       .k = k,
                       .largest = largest_};
    const size_t bytes = topk_scratch_bytes(p);
    CUVIL_CUDA(launch_topk(p, bytes > 0 ? ctx.scratch(bytes) : nullptr, ctx.stream()));
  }

 private:
  int64_t k_;
  int64_t axis_;
  bool largest_;
};

const Register topk{{.type = "TopK", .supports = supports, .create = make_op<TopK>, .cpu_inputs = {1}}};

}  // namespace
}  // namespace cuvil
