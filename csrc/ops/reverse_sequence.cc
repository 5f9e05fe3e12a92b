// ReverseSequence, opset 10 and later.
#include "kernels/reverse_sequence.cuh"

#include "ops/index_guard.h"
#include "ops/params.h"

namespace cuvil {
namespace {

std::string supports(const NodeView& node) {
  const int64_t time = node.get<int64_t>("time_axis", 0), batch = node.get<int64_t>("batch_axis", 1);
  if (!((time == 0 && batch == 1) || (time == 1 && batch == 0)))
    return concat("time_axis is ", time, " and batch_axis ", batch, "; 0 and 1 are required, in any order");
  if (node.input_dtype(1) != DType::kI64)
    return concat("input 1 is ", name_of(node.input_dtype(1)), "; i64 is required");
  return require_movable(node, 0);
}

class ReverseSequence : public Op {
 public:
  explicit ReverseSequence(const NodeView& node) : time_first_(node.get<int64_t>("time_axis", 0) == 0) {}

  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0), lengths = ctx.input(1);
    require(x.shape.rank() >= 2, "input 0 has shape ", x.shape.to_string(), "; rank 2 or more is required");
    const int64_t batch = x.shape[time_first_ ? 1 : 0];
    require(lengths.shape == Dims{batch}, "sequence_lens has shape ", lengths.shape.to_string(), "; [", batch,
            "] is required");
    const Tensor y = ctx.output(0, x.shape);
    if (y.size() == 0) return;
    ReverseSequenceParams p{.x = x.data,
                            .y = y.data,
                            .lengths = lengths.as<int64_t>(),
                            .element_size = static_cast<int>(size_of(x.dtype)),
                            .time = x.shape[time_first_ ? 0 : 1],
                            .batch = batch,
                            .inner = x.shape.product(2, x.shape.rank()),
                            .time_first = time_first_,
                            .out_of_range = guard_.arm()};
    // Steps move as whole as they can.
    const uintptr_t addresses = reinterpret_cast<uintptr_t>(x.data) | reinterpret_cast<uintptr_t>(y.data);
    while (p.element_size < 16 && p.inner % 2 == 0 && addresses % (2 * static_cast<uintptr_t>(p.element_size)) == 0) {
      p.element_size *= 2;
      p.inner /= 2;
    }
    CUVIL_CUDA(launch_reverse_sequence(p, ctx.stream()));
  }

 private:
  bool time_first_;
  IndexGuard guard_;
};

const Register reverse_sequence{
    {.type = "ReverseSequence", .since = 10, .supports = supports, .create = make_op<ReverseSequence>}};

}  // namespace
}  // namespace cuvil
