#include "ops/narrow_cast.h"

#include "kernels/narrow_cast.cuh"

namespace cuvil {
namespace {

class NarrowCast : public Op {
 public:
  explicit NarrowCast(const NodeView& node)
      : to_(node.output_dtype(0)), saturate_(node.get<int64_t>("saturate", 1) != 0) {}
  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0);
    const Tensor y = ctx.output(0, x.shape);
    CUVIL_CUDA(launch_narrow_cast({x.data, y.data, x.size(), x.dtype, to_, saturate_}, ctx.stream()));
  }

 private:
  const DType to_;
  const bool saturate_;
};

}  // namespace

bool is_narrow_cast(const NodeView& node) {
  return narrow_bits(node.input_dtype(0)) != 0 || narrow_bits(node.output_dtype(0)) != 0;
}

std::string narrow_cast_refusal(const NodeView& node) {
  const DType from = node.input_dtype(0), to = node.output_dtype(0);
  const DType wide = narrow_bits(from) ? to : from;
  if (has_narrow_cast(wide)) return "";
  return concat("a cast from ", name_of(from), " to ", name_of(to),
                "; 8-bit floats and integers below a byte are cast from and to f32, f16, bf16, i8, u8 and i32");
}

std::unique_ptr<Op> create_narrow_cast(const NodeView& node) { return make_op<NarrowCast>(node); }

}  // namespace cuvil
