// com.microsoft BiasAdd and BiasSplitGelu, which ONNX Runtime's optimizer writes into diffusion models.
#include "kernels/bias_split_gelu.cuh"
#include "ops/program_builder.h"

namespace cuvil {
namespace {

// X + bias + skip, the sums kept in f32.
Elementwise bias_add(const NodeView& node) {
  ProgramBuilder b(node);
  const int x = b.load(0);
  const DType t = b.dtype_of(x);
  require(t == DType::kF32 || t == DType::kF16, "input 0 is ", name_of(t), "; f32 or f16 is required");
  int sum = b.cast(x, DType::kF32);
  for (int i : {1, 2}) sum = b.emit(jit::PwOp::kAdd, DType::kF32, {sum, b.cast(b.load(i), DType::kF32)});
  return b.finish(b.cast(sum, t));
}

std::string supports_split(const NodeView& node) {
  const DType t = node.input_dtype(0);
  if (t != DType::kF32 && t != DType::kF16) return concat("input 0 is ", name_of(t), "; f32 or f16 is required");
  if (node.input_dtype(1) != t) return concat("input 1 is ", name_of(node.input_dtype(1)), ", input 0 ", name_of(t));
  return "";
}

class BiasSplitGelu : public Op {
 public:
  explicit BiasSplitGelu(const NodeView&) {}

  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0), bias = ctx.input(1);
    const int rank = x.shape.rank();
    require(rank >= 1 && x.shape[rank - 1] % 2 == 0, "input 0 has shape ", x.shape.to_string(),
            "; an even last dimension is required");
    const int64_t width = x.shape[rank - 1];
    require(bias.shape == Dims{width}, "the bias has shape ", bias.shape.to_string(), "; [", width, "] is required");
    Dims shape = x.shape;
    shape[rank - 1] = width / 2;
    BiasSplitGeluParams p{.x = x.data, .bias = bias.data, .y = ctx.output(0, shape).data, .dtype = x.dtype};
    p.rows = shape.product(0, rank - 1), p.n = width / 2;
    CUVIL_CUDA(launch_bias_split_gelu(p, ctx.stream()));
  }
};

const Register add{elementwise<bias_add>("BiasAdd", 1, 1, "com.microsoft")};
const Register split{
    {.domain = "com.microsoft", .type = "BiasSplitGelu", .supports = supports_split, .create = make_op<BiasSplitGelu>}};

}  // namespace
}  // namespace cuvil
