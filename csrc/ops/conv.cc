// Conv: 1 to 3 spatial dimensions, groups, dilations, any padding, bias.
#include "ops/conv_op.h"

namespace cuvil {
namespace {

class Conv : public ConvOp {
 public:
  explicit Conv(const NodeView& node) : ConvOp(node, false, {}) {}
};

std::string supports(const NodeView& node) { return conv_reason(node, 3); }

const Register conv({.domain = "", .type = "Conv", .supports = supports, .create = make_op<Conv>});

}  // namespace
}  // namespace cuvil
