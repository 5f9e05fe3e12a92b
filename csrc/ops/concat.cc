// Concat, opset 4 and later: one launch for every kMaxSegments inputs.
#include "kernels/segments.cuh"
#include "ops/params.h"

namespace cuvil {
namespace {

class Concat : public Op {
 public:
  explicit Concat(const NodeView& node) : count_(node.num_inputs()), axis_(node.get<int64_t>("axis", 1)) {}

  void compute(OpContext& ctx) override {
    Dims shape = ctx.input(0).shape;
    const int axis = normalize_axis(axis_, shape.rank());
    for (int i = 1; i < count_; ++i) {
      const Dims other = ctx.input(i).shape;
      Dims expected = shape;
      require(other.rank() == shape.rank(), "Concat: input 0 has rank ", shape.rank(), ", input ", i, " has rank ",
              other.rank());
      expected[axis] = other[axis];
      require(other == expected, "Concat: input ", i, " is ", other.to_string(), "; it may differ from ",
              shape.to_string(), " on axis ", axis, " only");
      shape[axis] += other[axis];
    }
    const Tensor y = ctx.output(0, shape);
    if (y.size() == 0) return;

    SegmentsParams p{};
    p.rows = shape.product(0, axis);
    const int64_t unit = shape.product(axis + 1, shape.rank()) * static_cast<int64_t>(size_of(y.dtype));
    char* target = y.as<char>();
    for (int i = 0; i < count_; ++i) {
      const Tensor x = ctx.input(i);
      const int64_t width = x.shape[axis] * unit;
      p.segment[p.count++] = {x.data, target, width, shape[axis] * unit, width};
      target += width;
      if (p.count < kMaxSegments && i + 1 < count_) continue;
      CUVIL_CUDA(launch_segments(p, ctx.stream()));
      p.count = 0;
    }
  }

 private:
  int count_;
  int64_t axis_;
};

const Register concat_op{{.type = "Concat", .supports = supports_any_type, .create = make_op<Concat>}};

}  // namespace
}  // namespace cuvil
