// NonZero and Compress: which elements there are decides how large the output is.
#include "kernels/select.cuh"

#include <algorithm>

#include "kernels/gather.cuh"
#include "ops/data_size.h"
#include "ops/params.h"

namespace cuvil {
namespace {

struct Selected {
  const int64_t* indices = nullptr;
  int64_t count = 0;
};

// The indices of the first `n` elements of x that are not zero.
Selected select(OpContext& ctx, const Tensor& x, int64_t n) {
  if (n == 0) return {};
  auto* indices = static_cast<int64_t*>(ctx.scratch(static_cast<size_t>(n + 1) * sizeof(int64_t)));
  void* scratch = ctx.scratch(select_scratch_bytes(n));
  const SelectParams p{.x = x.data, .dtype = x.dtype, .n = n, .indices = indices, .count = indices + n};
  CUVIL_CUDA(launch_select(p, scratch, ctx.stream()));
  return {indices, read_sizes(ctx, p.count, 1)[0]};
}

bool is_selectable(DType t) { return t == DType::kBool || is_float(t) || (size_of(t) != 0 && t <= DType::kU64); }

class NonZero : public Op {
 public:
  explicit NonZero(const NodeView&) {}
  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0);
    const int rank = x.shape.rank();
    require(rank >= 1, "input 0 is a scalar; one dimension or more are required");
    const Selected selected = select(ctx, x, x.size());
    const Tensor y = ctx.output(0, Dims{rank, selected.count});
    CoordinatesParams p{.indices = selected.indices, .y = y.as<int64_t>(), .count = selected.count, .rank = rank};
    std::copy(x.shape.data(), x.shape.data() + rank, p.shape);
    CUVIL_CUDA(launch_coordinates(p, ctx.stream()));
  }
};

class Compress : public Op {
 public:
  explicit Compress(const NodeView& node) : flat_(!node.find("axis", &axis_)) {}
  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0), condition = ctx.input(1);
    require(condition.shape.rank() == 1, "input 1 has the shape ", condition.shape.to_string(),
            "; one dimension is required");
    const int rank = x.shape.rank(), axis = flat_ ? 0 : normalize_axis(axis_, rank);
    const int64_t extent = flat_ ? x.size() : x.shape[axis];
    const Selected selected = select(ctx, condition, std::min(extent, condition.size()));
    Dims shape = flat_ ? Dims{selected.count} : x.shape;
    if (!flat_) shape[axis] = selected.count;
    const Tensor y = ctx.output(0, shape);
    CUVIL_CUDA(launch_gather({.data = x.data,
                              .indices = selected.indices,
                              .output = y.data,
                              .element_size = static_cast<int>(size_of(x.dtype)),
                              .indices64 = true,
                              .outer = flat_ ? 1 : x.shape.product(0, axis),
                              .axis = extent,
                              .count = selected.count,
                              .inner = flat_ ? 1 : x.shape.product(axis + 1, rank),
                              .out_of_range = nullptr},
                             ctx.stream()));
  }

 private:
  int64_t axis_ = 0;
  bool flat_;
};

std::string supports_non_zero(const NodeView& node) {
  const std::optional<Dims> shape = node.input_shape(0);
  if (shape && shape->rank() == 0) return "input 0 is a scalar";
  if (is_selectable(node.input_dtype(0))) return "";
  return concat("input 0 is ", name_of(node.input_dtype(0)), "; a number or bool is required");
}

const Register non_zero{
    OpEntry{.type = "NonZero", .since = 9, .supports = supports_non_zero, .create = make_op<NonZero>}};
const Register compress{
    OpEntry{.type = "Compress", .since = 9, .supports = supports_any_type, .create = make_op<Compress>}};

}  // namespace
}  // namespace cuvil
