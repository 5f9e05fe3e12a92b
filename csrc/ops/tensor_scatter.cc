// TensorScatter (opset 24): a key-value cache gets new steps. The cache's own buffer is written where ORT lends it.
#include "kernels/tensor_scatter.cuh"

#include "ops/index_guard.h"
#include "ops/params.h"

namespace cuvil {
namespace {

class TensorScatter : public Op {
 public:
  explicit TensorScatter(const NodeView& node)
      : axis_(node.get<int64_t>("axis", -2)), circular_(node.get("mode", std::string("linear")) == "circular") {}

  void compute(OpContext& ctx) override {
    const Tensor cache = ctx.input(0), update = ctx.input(1);
    const int rank = cache.shape.rank(), axis = normalize_axis(axis_, rank);
    require(axis > 0, "axis is that of the batch; a later one is required");
    Dims wanted = cache.shape;
    if (update.shape.rank() == rank) wanted[axis] = update.shape[axis];
    require(update.shape == wanted && update.shape[axis] <= cache.shape[axis], "input 1 has the shape ",
            update.shape.to_string(), "; that of the cache ", cache.shape.to_string(),
            " with at most as much along axis ", axis, " is required");
    TensorScatterParams p{.update = update.data,
                          .batch = cache.shape[0],
                          .planes = cache.shape.product(1, axis),
                          .steps = update.shape[axis],
                          .capacity = cache.shape[axis],
                          .row_bytes = cache.shape.product(axis + 1, rank) * static_cast<int64_t>(size_of(cache.dtype)),
                          .circular = circular_};
    if (ctx.has_input(2)) {
      const Tensor first = ctx.input(2);
      require(first.shape.rank() == 1 && first.shape[0] == p.batch, "input 2 has the shape ", first.shape.to_string(),
              "; [", p.batch, "], one place a sample, is required");
      p.first = first.as<int64_t>();
      p.out_of_range = guard_.arm();
    }
    const Tensor y = ctx.output(0, cache.shape);
    copy_elements(ctx, cache, y);
    p.y = y.data;
    CUVIL_CUDA(launch_tensor_scatter(p, ctx.stream()));
  }

 private:
  int64_t axis_;
  bool circular_;
  IndexGuard guard_;
};

std::string supports(const NodeView& node) {
  if (node.has_input(2) && node.input_dtype(2) != DType::kI64)
    return concat("input 2 is ", name_of(node.input_dtype(2)), "; i64 is required");
  return require_movable(node, 0);
}

const Register tensor_scatter{OpEntry{.type = "TensorScatter",
                                      .since = 24,
                                      .supports = supports,
                                      .create = make_op<TensorScatter>,
                                      .may_inplace = {{0, 0}}}};

}  // namespace
}  // namespace cuvil
