// Shape and Size: host outputs, so that the shape arithmetic behind them runs on the CPU without a copy.
#include <algorithm>

#include "ops/params.h"

namespace cuvil {
namespace {

// `start` and `end` (opset 15) count from the end when negative and are clamped to the rank.
class Shape : public Op {
 public:
  explicit Shape(const NodeView& node) : start_(node.get<int64_t>("start", 0)), has_end_(node.find("end", &end_)) {}
  void compute(OpContext& ctx) override {
    const Dims shape = ctx.input(0).shape;
    const int64_t rank = shape.rank();
    const int64_t start = clamp(start_, rank), end = std::max(start, has_end_ ? clamp(end_, rank) : rank);
    const Tensor y = ctx.output(0, Dims{end - start});
    std::copy(shape.begin() + start, shape.begin() + end, y.as<int64_t>());
  }

 private:
  static int64_t clamp(int64_t i, int64_t rank) { return std::clamp<int64_t>(i < 0 ? i + rank : i, 0, rank); }

  int64_t start_;
  int64_t end_ = 0;
  bool has_end_;
};

class Size : public Op {
 public:
  explicit Size(const NodeView&) {}
  void compute(OpContext& ctx) override { *ctx.output(0, Dims{}).as<int64_t>() = ctx.input(0).size(); }
};

const Register shape{{.type = "Shape", .supports = supports_any_type, .create = make_op<Shape>, .cpu_outputs = {0}}};
const Register size{{.type = "Size", .supports = supports_any_type, .create = make_op<Size>, .cpu_outputs = {0}}};

}  // namespace
}  // namespace cuvil
