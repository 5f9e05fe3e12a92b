// Det (opset 11).
#include "kernels/determinant.cuh"
#include "ops/op.h"

namespace cuvil {
namespace {

class Det : public Op {
 public:
  explicit Det(const NodeView&) {}

  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0);
    const int rank = x.shape.rank();
    require(rank >= 2 && x.shape[rank - 1] == x.shape[rank - 2], "input 0 has the shape ", x.shape.to_string(),
            "; square matrices are required");
    const Dims shape(x.shape.data(), static_cast<size_t>(rank - 2));
    const Tensor y = ctx.output(0, shape);
    DeterminantParams p{.x = x.data, .y = y.data, .dtype = x.dtype, .count = y.size(), .n = x.shape[rank - 1]};
    if (const size_t bytes = determinant_scratch_bytes(p)) p.work = ctx.scratch(bytes);
    CUVIL_CUDA(launch_determinant(p, ctx.stream()));
  }
};

std::string supports(const NodeView& node) {
  const DType t = node.input_dtype(0);
  if (t == DType::kF32 || t == DType::kF16 || t == DType::kBF16 || t == DType::kF64) return "";
  return concat("input 0 is ", name_of(t), "; a floating type is required");
}

const Register det{{.type = "Det", .since = 11, .supports = supports, .create = make_op<Det>}};

}  // namespace
}  // namespace cuvil
