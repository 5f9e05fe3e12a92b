// AffineGrid (opset 20). The output's size is read on the host.
#include "kernels/affine_grid.cuh"

#include "ops/params.h"

namespace cuvil {
namespace {

class AffineGrid : public Op {
 public:
  explicit AffineGrid(const NodeView& node) : align_corners_(node.get<int64_t>("align_corners", 0) != 0) {}

  void compute(OpContext& ctx) override {
    const Tensor theta = ctx.input(0);
    const std::vector<int64_t> size = read_ints(ctx.input(1));
    require(size.size() == 4 || size.size() == 5, "input 1 holds ", size.size(), " numbers; 4 or 5 are required");
    const int rank = static_cast<int>(size.size()) - 2;
    require(theta.shape == (Dims{size[0], rank, rank + 1}), "input 0 has the shape ", theta.shape.to_string(), "; ",
            (Dims{size[0], rank, rank + 1}).to_string(), " is required");
    AffineGridParams p{.theta = theta.data, .dtype = theta.dtype, .rank = rank, .batch = size[0]};
    p.depth = rank == 3 ? size[2] : 1;
    p.height = size[size.size() - 2];
    p.width = size[size.size() - 1];
    p.align_corners = align_corners_;
    p.y = ctx.output(0, rank == 3 ? Dims{p.batch, p.depth, p.height, p.width, 3} : Dims{p.batch, p.height, p.width, 2})
              .data;
    CUVIL_CUDA(launch_affine_grid(p, ctx.stream()));
  }

 private:
  bool align_corners_;
};

std::string supports(const NodeView& node) {
  const DType t = node.input_dtype(0);
  if (t == DType::kF32 || t == DType::kF16 || t == DType::kBF16 || t == DType::kF64) return "";
  return concat("input 0 is ", name_of(t), "; a floating type is required");
}

const Register affine_grid{
    {.type = "AffineGrid", .since = 20, .supports = supports, .create = make_op<AffineGrid>, .cpu_inputs = {1}}};

}  // namespace
}  // namespace cuvil
