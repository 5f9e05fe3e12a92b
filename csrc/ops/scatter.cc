// Scatter (opset 9), ScatterElements, ScatterND. Out-of-range indices: see ops/index_guard.h.
#include "kernels/scatter.cuh"

#include <algorithm>
#include <utility>

#include "ops/index_guard.h"
#include "ops/params.h"
#include "plan/strided.h"

namespace cuvil {
namespace {

// Whether updates are combined with what is there (opset 16; max and min since 18), and how.
struct Reduction {
  bool combines = false;
  ScatterReduction how = ScatterReduction::kAdd;
};

// "" and *out set, or the reason.
std::string parse_reduction(const NodeView& node, Reduction* out) {
  const std::string name = node.get<std::string>("reduction", "none");
  const std::pair<const char*, ScatterReduction> known[] = {{"add", ScatterReduction::kAdd},
                                                            {"mul", ScatterReduction::kMul},
                                                            {"max", ScatterReduction::kMax},
                                                            {"min", ScatterReduction::kMin}};
  if (name == "none") return "";
  for (const auto& [text, how] : known) {
    if (name != text) continue;
    *out = {true, how};
    const DType t = node.input_dtype(0);
    return t == DType::kBool ? concat("input 0 is ", name_of(t), "; reduction '", name, "' requires a number") : "";
  }
  return concat("reduction is '", name, "'; none, add, mul, max or min is required");
}

Reduction reduction_of(const NodeView& node) {
  Reduction r;
  const std::string reason = parse_reduction(node, &r);
  require(reason.empty(), reason);
  return r;
}

std::string supports(const NodeView& node) {
  Reduction ignored;
  if (std::string reason = parse_reduction(node, &ignored); !reason.empty()) return reason;
  const DType t = node.input_dtype(1);
  if (t != DType::kI32 && t != DType::kI64) return concat("input 1 is ", name_of(t), "; i32 or i64 is required");
  return require_movable(node, 0);
}

class ScatterElements : public Op {
 public:
  explicit ScatterElements(const NodeView& node)
      : axis_(node.get<int64_t>("axis", 0)), reduction_(reduction_of(node)) {}

  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0), indices = ctx.input(1), updates = ctx.input(2);
    const int rank = x.shape.rank(), axis = normalize_axis(axis_, rank);
    require(indices.shape == updates.shape, "ScatterElements: indices are ", indices.shape.to_string(),
            ", updates are ", updates.shape.to_string());
    require(indices.shape.rank() == rank, "ScatterElements: data has rank ", rank, ", indices have rank ",
            indices.shape.rank());
    for (int i = 0; i < rank; ++i)
      require(i == axis || indices.shape[i] <= x.shape[i], "ScatterElements: indices ", indices.shape.to_string(),
              " exceed data ", x.shape.to_string(), " on dimension ", i);
    const Tensor y = ctx.output(0, x.shape);
    copy_elements(ctx, x, y);
    const Dims strides = plan::contiguous_strides(x.shape);
    ScatterElementsParams p{.output = y.data,
                            .indices = indices.data,
                            .updates = updates.data,
                            .element_size = static_cast<int>(size_of(x.dtype)),
                            .indices64 = indices.dtype == DType::kI64,
                            .rank = rank,
                            .axis = axis,
                            .extent = {},
                            .output_stride = {},
                            .axis_extent = x.shape[axis],
                            .out_of_range = guard_.arm()};
    std::copy(indices.shape.begin(), indices.shape.end(), p.extent);
    std::copy(strides.begin(), strides.end(), p.output_stride);
    CUVIL_CUDA(reduction_.combines ? launch_scatter_elements(p, reduction_.how, x.dtype, ctx.stream())
                                   : launch_scatter_elements(p, ctx.stream()));
  }

 private:
  int64_t axis_;
  Reduction reduction_;
  IndexGuard guard_;
};

class ScatterND : public Op {
 public:
  explicit ScatterND(const NodeView& node) : reduction_(reduction_of(node)) {}

  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0), indices = ctx.input(1), updates = ctx.input(2);
    const int rank = x.shape.rank(), tuple_rank = indices.shape.rank() - 1;
    require(rank > 0 && tuple_rank >= 0, "ScatterND: data and indices need a dimension each");
    const int64_t depth = indices.shape[tuple_rank];
    require(depth >= 1 && depth <= rank, "ScatterND: indices ", indices.shape.to_string(), " do not fit data ",
            x.shape.to_string());
    const int indexed = static_cast<int>(depth);
    Dims expected;
    for (int i = 0; i < tuple_rank; ++i) expected.push_back(indices.shape[i]);
    for (int i = indexed; i < rank; ++i) expected.push_back(x.shape[i]);
    require(updates.shape == expected, "ScatterND: updates are ", updates.shape.to_string(), "; ", expected.to_string(),
            " is required");
    const Tensor y = ctx.output(0, x.shape);
    copy_elements(ctx, x, y);
    const Dims strides = plan::contiguous_strides(x.shape);
    ScatterNDParams p{.output = y.data,
                      .indices = indices.as<int64_t>(),
                      .updates = updates.data,
                      .element_size = static_cast<int>(size_of(x.dtype)),
                      .tuples = indices.shape.product(0, tuple_rank),
                      .inner = x.shape.product(indexed, rank),
                      .depth = indexed,
                      .extent = {},
                      .stride = {},
                      .out_of_range = guard_.arm()};
    std::copy_n(x.shape.begin(), indexed, p.extent);
    std::copy_n(strides.begin(), indexed, p.stride);
    CUVIL_CUDA(reduction_.combines ? launch_scatter_nd(p, reduction_.how, x.dtype, ctx.stream())
                                   : launch_scatter_nd(p, ctx.stream()));
  }

 private:
  Reduction reduction_;
  IndexGuard guard_;
};

template <typename T>
OpEntry entry(const char* type) {
  return {.type = type, .supports = supports, .create = make_op<T>, .may_inplace = {{0, 0}}};
}

const Register scatter{entry<ScatterElements>("Scatter")};
const Register scatter_elements{entry<ScatterElements>("ScatterElements")};
const Register scatter_nd{entry<ScatterND>("ScatterND")};

}  // namespace
}  // namespace cuvil
