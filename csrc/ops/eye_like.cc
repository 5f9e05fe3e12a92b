// EyeLike, opset 9 and later: of the input only the shape is read, and the type where the node gives none.
#include <algorithm>

#include "kernels/diagonal.cuh"
#include "ops/op.h"

namespace cuvil {
namespace {

// The number 1, as bits.
uint64_t one_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 0x3f800000;
    case DType::kF64:
      return 0x3ff0000000000000;
    case DType::kF16:
      return 0x3c00;
    case DType::kBF16:
      return 0x3f80;
    default:
      return 1;  // integers and bool
  }
}

std::string supports(const NodeView& node) {
  if (const DType t = node.output_dtype(0); size_of(t) == 0) return concat("output 0 is ", name_of(t));
  if (const auto x = node.input_shape(0); x && x->rank() != 2)
    return concat("input 0 has rank ", x->rank(), "; 2 is required");
  return "";
}

class EyeLike : public Op {
 public:
  explicit EyeLike(const NodeView& node) : k_(node.get<int64_t>("k", 0)) {}

  void compute(OpContext& ctx) override {
    const Dims shape = ctx.input(0).shape;
    require(shape.rank() == 2, "input 0 has shape ", shape.to_string(), "; rank 2 is required");
    const Tensor y = ctx.output(0, shape);
    if (y.size() == 0) return;
    CUVIL_CUDA(cudaMemsetAsync(y.data, 0, y.bytes(), ctx.stream()));
    const int64_t rows = shape[0], columns = shape[1];
    const int64_t k = std::clamp(k_, -rows, columns);  // farther away there is no diagonal either
    const int64_t row = std::max<int64_t>(-k, 0), column = std::max<int64_t>(k, 0);
    const DiagonalParams p{.output = y.data,
                           .first = row * columns + column,
                           .step = columns + 1,
                           .count = std::min(rows - row, columns - column),
                           .element_size = static_cast<int>(size_of(y.dtype)),
                           .bits = one_of(y.dtype)};
    CUVIL_CUDA(launch_diagonal(p, ctx.stream()));
  }

 private:
  int64_t k_;
};

const Register eye_like{{.type = "EyeLike", .since = 9, .supports = supports, .create = make_op<EyeLike>}};

}  // namespace
}  // namespace cuvil
