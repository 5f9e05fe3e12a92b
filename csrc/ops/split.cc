// Split, opset 2 and later. The sizes come from an attribute (before 13), an input, or the number of outputs.
#include <algorithm>

#include "kernels/segments.cuh"
#include "ops/params.h"

namespace cuvil {
namespace {

class Split : public Op {
 public:
  explicit Split(const NodeView& node)
      : count_(node.num_outputs()),
        axis_(node.get<int64_t>("axis", 0)),
        sizes_(node, "split", 1),
        uneven_(node.since_version() >= 18) {}

  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0);
    const int axis = normalize_axis(axis_, x.shape.rank());
    const std::vector<int64_t> sizes = sizes_of(ctx, x.shape[axis]);

    SegmentsParams p{};
    p.rows = x.shape.product(0, axis);
    const int64_t unit = x.shape.product(axis + 1, x.shape.rank()) * static_cast<int64_t>(size_of(x.dtype));
    const char* source = x.as<const char>();
    for (int i = 0; i < count_; ++i) {
      const int64_t width = sizes[static_cast<size_t>(i)] * unit;
      if (ctx.has_output(i)) {
        Dims shape = x.shape;
        shape[axis] = sizes[static_cast<size_t>(i)];
        const Tensor y = ctx.output(i, shape);
        if (y.size() > 0) p.segment[p.count++] = {source, y.data, x.shape[axis] * unit, width, width};
      }
      source += width;
      if (p.count == 0 || (p.count < kMaxSegments && i + 1 < count_)) continue;
      CUVIL_CUDA(launch_segments(p, ctx.stream()));
      p.count = 0;
    }
  }

 private:
  // Without sizes: equal parts, the last one smaller when the extent does not divide (opset 18's num_outputs).
  std::vector<int64_t> sizes_of(OpContext& ctx, int64_t extent) const {
    std::vector<int64_t> sizes = sizes_.get(ctx);
    if (sizes.empty()) {
      require(uneven_ || extent % count_ == 0, "Split: an axis of ", extent, " does not divide into ", count_,
              " equal parts");
      const int64_t part = (extent + count_ - 1) / count_;
      for (int64_t left = extent, i = 0; i < count_; ++i, left -= sizes.back()) sizes.push_back(std::min(part, left));
    }
    require(static_cast<int>(sizes.size()) == count_, "Split: ", sizes.size(), " sizes for ", count_, " outputs");
    int64_t sum = 0;
    for (int64_t s : sizes) {
      require(s >= 0, "Split: a size is ", s);
      sum += s;
    }
    require(sum == extent, "Split: the sizes add up to ", sum, ", the axis has ", extent);
    return sizes;
  }

  int count_;
  int64_t axis_;
  IntsParam sizes_;
  bool uneven_;
};

const Register split{
    {.type = "Split", .since = 2, .supports = supports_any_type, .create = make_op<Split>, .cpu_inputs = {1}}};

}  // namespace
}  // namespace cuvil
