// BitCast (opset 26): the bytes stay, only their type changes.
#include "ops/params.h"

namespace cuvil {
namespace {

std::string supports(const NodeView& node) {
  const DType from = node.input_dtype(0), to = node.output_dtype(0);
  if (size_of(from) != 0 && size_of(from) == size_of(to)) return "";
  return concat("from ", name_of(from), " to ", name_of(to), "; types of whole bytes and one size are required");
}

class BitCast : public Op {
 public:
  explicit BitCast(const NodeView&) {}
  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0);
    copy_elements(ctx, x, ctx.output(0, x.shape));
  }
};

const Register bit_cast{
    OpEntry{.type = "BitCast", .since = 26, .supports = supports, .create = make_op<BitCast>, .aliases = {{0, 0}}}};

}  // namespace
}  // namespace cuvil
