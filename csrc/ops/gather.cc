// Gather, GatherElements, GatherND. Out-of-range indices: see ops/index_guard.h.
#include "kernels/gather.cuh"

#include <algorithm>

#include "ops/index_guard.h"
#include "ops/params.h"
#include "plan/strided.h"

namespace cuvil {
namespace {

std::string supports(const NodeView& node) {
  const DType t = node.input_dtype(1);
  if (t != DType::kI32 && t != DType::kI64) return concat("input 1 is ", name_of(t), "; i32 or i64 is required");
  return require_movable(node, 0);
}

class Gather : public Op {
 public:
  explicit Gather(const NodeView& node) : axis_(node.get<int64_t>("axis", 0)) {}

  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0), indices = ctx.input(1);
    const int rank = x.shape.rank(), axis = normalize_axis(axis_, rank);
    Dims shape;
    for (int i = 0; i < axis; ++i) shape.push_back(x.shape[i]);
    for (int64_t d : indices.shape) shape.push_back(d);
    for (int i = axis + 1; i < rank; ++i) shape.push_back(x.shape[i]);
    const Tensor y = ctx.output(0, shape);
    const GatherParams p{.data = x.data,
                         .indices = indices.data,
                         .output = y.data,
                         .element_size = static_cast<int>(size_of(x.dtype)),
                         .indices64 = indices.dtype == DType::kI64,
                         .outer = x.shape.product(0, axis),
                         .axis = x.shape[axis],
                         .count = indices.size(),
                         .inner = x.shape.product(axis + 1, rank),
                         .out_of_range = guard_.arm()};
    CUVIL_CUDA(launch_gather(p, ctx.stream()));
  }

 private:
  int64_t axis_;
  IndexGuard guard_;
};

class GatherElements : public Op {
 public:
  explicit GatherElements(const NodeView& node) : axis_(node.get<int64_t>("axis", 0)) {}

  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0), indices = ctx.input(1);
    const int rank = x.shape.rank(), axis = normalize_axis(axis_, rank);
    require(indices.shape.rank() == rank, "GatherElements: data has rank ", rank, ", indices have rank ",
            indices.shape.rank());
    for (int i = 0; i < rank; ++i)
      require(i == axis || indices.shape[i] <= x.shape[i], "GatherElements: indices ", indices.shape.to_string(),
              " exceed data ", x.shape.to_string(), " on dimension ", i);
    const Tensor y = ctx.output(0, indices.shape);
    const Dims strides = plan::contiguous_strides(x.shape);
    GatherElementsParams p{.data = x.data,
                           .indices = indices.data,
                           .output = y.data,
                           .element_size = static_cast<int>(size_of(x.dtype)),
                           .indices64 = indices.dtype == DType::kI64,
                           .rank = rank,
                           .axis = axis,
                           .extent = {},
                           .data_stride = {},
                           .axis_extent = x.shape[axis],
                           .out_of_range = guard_.arm()};
    std::copy(indices.shape.begin(), indices.shape.end(), p.extent);
    std::copy(strides.begin(), strides.end(), p.data_stride);
    CUVIL_CUDA(launch_gather_elements(p, ctx.stream()));
  }

 private:
  int64_t axis_;
  IndexGuard guard_;
};

class GatherND : public Op {
 public:
  explicit GatherND(const NodeView& node) : batch_dims_(static_cast<int>(node.get<int64_t>("batch_dims", 0))) {}

  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0), indices = ctx.input(1);
    const int rank = x.shape.rank(), tuple_rank = indices.shape.rank() - 1;
    require(rank > 0 && tuple_rank >= 0, "GatherND: data and indices need a dimension each");
    const int64_t depth = indices.shape[tuple_rank];
    require(batch_dims_ >= 0 && batch_dims_ <= tuple_rank && depth >= 1 && batch_dims_ + depth <= rank,
            "GatherND: indices ", indices.shape.to_string(), " with batch_dims ", batch_dims_, " do not fit data ",
            x.shape.to_string());
    for (int i = 0; i < batch_dims_; ++i)
      require(x.shape[i] == indices.shape[i], "GatherND: batch dimension ", i, " is ", x.shape[i], " in data and ",
              indices.shape[i], " in indices");
    const int indexed = batch_dims_ + static_cast<int>(depth);
    Dims shape;
    for (int i = 0; i < tuple_rank; ++i) shape.push_back(indices.shape[i]);
    for (int i = indexed; i < rank; ++i) shape.push_back(x.shape[i]);
    const Tensor y = ctx.output(0, shape);
    const Dims strides = plan::contiguous_strides(x.shape);
    GatherNDParams p{.data = x.data,
                     .indices = indices.data,
                     .output = y.data,
                     .element_size = static_cast<int>(size_of(x.dtype)),
                     .tuples = indices.shape.product(0, tuple_rank),
                     .per_batch = indices.shape.product(batch_dims_, tuple_rank),
                     .batch_stride = x.shape.product(batch_dims_, rank),
                     .inner = x.shape.product(indexed, rank),
                     .depth = static_cast<int>(depth),
                     .extent = {},
                     .stride = {},
                     .out_of_range = guard_.arm()};
    std::copy(x.shape.begin() + batch_dims_, x.shape.begin() + indexed, p.extent);
    std::copy(strides.begin() + batch_dims_, strides.begin() + indexed, p.stride);
    CUVIL_CUDA(launch_gather_nd(p, ctx.stream()));
  }

 private:
  int batch_dims_;
  IndexGuard guard_;
};

template <typename T>
OpEntry entry(const char* type) {
  return {.type = type, .supports = supports, .create = make_op<T>};
}

const Register gather{entry<Gather>("Gather")};
const Register gather_elements{entry<GatherElements>("GatherElements")};
const Register gather_nd{entry<GatherND>("GatherND")};

}  // namespace
}  // namespace cuvil
