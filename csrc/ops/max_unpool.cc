// MaxUnpool, opset 9 and later: each value goes to its place in a tensor of zeros.
//
// Indices are places in the output, also where output_shape enlarges it: as in ONNX Runtime, and as MaxPool made them
// when output_shape is the shape of its input. (onnx's node case with an output_shape counts them in the smaller tensor
// that the attributes alone would give.)
#include <climits>

#include "kernels/scatter.cuh"
#include "ops/index_guard.h"
#include "ops/params.h"

namespace cuvil {
namespace {

constexpr int kOutputShape = 2;

std::string supports(const NodeView& node) {
  const DType t = node.input_dtype(0);
  if (!is_float(t)) return concat("input 0 is ", name_of(t), "; f32, f16, bf16 or f64 is required");
  if (node.input_dtype(1) != DType::kI64)
    return concat("input 1 is ", name_of(node.input_dtype(1)), "; i64 is required");
  return "";
}

class MaxUnpool : public Op {
 public:
  explicit MaxUnpool(const NodeView& node) {
    node.find("kernel_shape", &kernel_);
    node.find("strides", &strides_);
    node.find("pads", &pads_);
    const size_t rank = kernel_.size();
    require(strides_.empty() || strides_.size() == rank, "strides has ", strides_.size(), " values, kernel_shape ",
            rank);
    require(pads_.empty() || pads_.size() == 2 * rank, "pads has ", pads_.size(), " values, kernel_shape ", rank);
  }

  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0), indices = ctx.input(1);
    require(indices.shape == x.shape, "X and I have shapes ", x.shape.to_string(), " and ", indices.shape.to_string(),
            "; they must be equal");
    const Tensor y = ctx.output(0, output_shape(ctx, x.shape));
    if (y.size() == 0) return;
    CUVIL_CUDA(cudaMemsetAsync(y.data, 0, y.bytes(), ctx.stream()));
    if (x.size() == 0) return;
    const ScatterNDParams p{.output = y.data,
                            .indices = indices.as<int64_t>(),
                            .updates = x.data,
                            .element_size = static_cast<int>(size_of(x.dtype)),
                            .tuples = x.size(),
                            .inner = 1,
                            .depth = 1,
                            .extent = {y.size()},
                            .stride = {1},
                            .out_of_range = guard_.arm()};
    CUVIL_CUDA(launch_scatter_nd(p, ctx.stream()));
  }

 private:
  // What the pool that gave X read; several sizes may give the same X, so that an input may say which.
  Dims output_shape(OpContext& ctx, const Dims& x) const {
    const int rank = static_cast<int>(kernel_.size());
    require(x.rank() == rank + 2, "X has shape ", x.to_string(), "; ", rank, " spatial dimensions are required");
    Dims inferred{x[0], x[1]};
    for (int i = 0; i < rank; ++i) {
      const size_t d = static_cast<size_t>(i);
      const int64_t stride = strides_.empty() ? 1 : strides_[d];
      const int64_t pads = pads_.empty() ? 0 : pads_[d] + pads_[d + kernel_.size()];
      const int64_t size = (x[2 + i] - 1) * stride - pads + kernel_[d];
      inferred.push_back(size > 0 && x[2 + i] > 0 ? size : 0);
    }
    if (!ctx.has_input(kOutputShape)) return inferred;
    const std::vector<int64_t> wanted = read_ints(ctx.input(kOutputShape));
    const Dims given(wanted.data(), wanted.size());
    require(given.rank() == x.rank() && given.size() >= inferred.size(), "output_shape is ", given.to_string(),
            "; a shape of at least the size of ", inferred.to_string(), " is required");
    return given;
  }

  std::vector<int64_t> kernel_, strides_, pads_;
  IndexGuard guard_;
};

const Register max_unpool{{.type = "MaxUnpool",
                           .since = 9,
                           .supports = supports,
                           .create = make_op<MaxUnpool>,
                           .cpu_inputs = {kOutputShape}}};

}  // namespace
}  // namespace cuvil
