// Expand and Tile: views with strides of zero.
#include "ops/copy_view.h"
#include "ops/params.h"
#include "plan/shapes.h"

namespace cuvil {
namespace {

class Expand : public Op {
 public:
  explicit Expand(const NodeView&) {}
  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0);
    const Dims shape = plan::expand(x.shape, read_ints(ctx.input(1)));
    const Tensor y = ctx.output(0, shape);
    const Dims strides = plan::contiguous_strides(x.shape);
    plan::View view;
    for (int i = 0; i < shape.rank(); ++i) {
      const int from = i - (shape.rank() - x.shape.rank());
      view.push_back(shape[i], from < 0 || x.shape[from] == 1 ? 0 : strides[from]);
    }
    copy_view(ctx, x.data, y.data, x.dtype, view);
  }
};

class Tile : public Op {
 public:
  explicit Tile(const NodeView&) {}
  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0);
    const Dims repeats = plan::to_dims(read_ints(ctx.input(1)), "Tile: repeats");
    require(repeats.rank() == x.shape.rank(), "Tile: ", repeats.rank(), " repeats for rank ", x.shape.rank());
    const Dims strides = plan::contiguous_strides(x.shape);
    Dims shape = x.shape;
    plan::View view;
    for (int i = 0; i < shape.rank(); ++i) {
      shape[i] *= repeats[i];
      view.push_back(repeats[i], 0);
      view.push_back(x.shape[i], strides[i]);
    }
    const Tensor y = ctx.output(0, shape);
    copy_view(ctx, x.data, y.data, x.dtype, view);
  }
};

const Register expand{{.type = "Expand", .supports = supports_any_type, .create = make_op<Expand>, .cpu_inputs = {1}}};
const Register tile{
    {.type = "Tile", .since = 6, .supports = supports_any_type, .create = make_op<Tile>, .cpu_inputs = {1}}};

}  // namespace
}  // namespace cuvil
