// Unique (opset 11). How many slices differ decides how large the outputs are: the host waits for it.
#include "kernels/unique.cuh"

#include "kernels/gather.cuh"
#include "ops/data_size.h"
#include "ops/params.h"

namespace cuvil {
namespace {

enum Output { kValues, kFirst, kInverse, kCounts };

class Unique : public Op {
 public:
  explicit Unique(const NodeView& node)
      : flat_(!node.find("axis", &axis_)), sorted_(node.get<int64_t>("sorted", 1) != 0) {}

  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0);
    const int rank = x.shape.rank(), axis = flat_ ? 0 : normalize_axis(axis_, rank);
    UniqueParams p{.x = x.data, .dtype = x.dtype, .n = flat_ ? x.size() : x.shape[axis], .sorted = sorted_};
    if (!flat_) {
      p.outer = x.shape.product(0, axis);
      p.inner = x.shape.product(axis + 1, rank);
    }
    int64_t groups = 0;
    if (p.n > 0) {
      p.first = slices(ctx, p.n);
      p.counts = slices(ctx, p.n);
      p.inverse = slices(ctx, p.n);
      p.groups = slices(ctx, 1);
      CUVIL_CUDA(launch_unique(p, ctx.scratch(unique_scratch_bytes(p.n)), ctx.stream()));
      groups = read_sizes(ctx, p.groups, 1)[0];
    }
    Dims shape = flat_ ? Dims{groups} : x.shape;
    if (!flat_) shape[axis] = groups;
    CUVIL_CUDA(launch_gather({.data = x.data,
                              .indices = p.first,
                              .output = ctx.output(kValues, shape).data,
                              .element_size = static_cast<int>(size_of(x.dtype)),
                              .indices64 = true,
                              .outer = p.outer,
                              .axis = p.n,
                              .count = groups,
                              .inner = p.inner,
                              .out_of_range = nullptr},
                             ctx.stream()));
    copy(ctx, kFirst, p.first, groups);
    copy(ctx, kInverse, p.inverse, p.n);
    copy(ctx, kCounts, p.counts, groups);
  }

 private:
  static int64_t* slices(OpContext& ctx, int64_t n) {
    return static_cast<int64_t*>(ctx.scratch(static_cast<size_t>(n) * sizeof(int64_t)));
  }

  static void copy(OpContext& ctx, int i, int64_t* data, int64_t n) {
    if (ctx.has_output(i)) copy_elements(ctx, {data, DType::kI64, Dims{n}}, ctx.output(i, Dims{n}));
  }

  int64_t axis_ = 0;
  bool flat_, sorted_;
};

std::string supports(const NodeView& node) {
  switch (node.input_dtype(0)) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
    case DType::kF64:
    case DType::kI64:
    case DType::kI32:
    case DType::kI8:
    case DType::kU8:
    case DType::kBool:
      return "";
    default:
      return concat("input 0 is ", name_of(node.input_dtype(0)), "; a float, i8, i32, i64, u8 or bool is required");
  }
}

const Register unique{{.type = "Unique", .since = 11, .supports = supports, .create = make_op<Unique>}};

}  // namespace
}  // namespace cuvil
