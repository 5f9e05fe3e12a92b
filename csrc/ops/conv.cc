// Conv: 1 to 3 spatial dimensions, groups, dilations, any padding, bias; and com.microsoft NhwcConv, whose tensors and
// weights all have their channels last.
#include "ops/conv_op.h"

namespace cuvil {
namespace {

class Conv : public ConvOp {
 public:
  explicit Conv(const NodeView& node) : ConvOp(node, false, {}) {}
};

class NhwcConv : public ConvOp {
 public:
  explicit NhwcConv(const NodeView& node) : ConvOp(node, true, {}, true) {}
};

std::string supports(const NodeView& node) { return conv_reason(node, 3); }

const Register conv({.domain = "", .type = "Conv", .supports = supports, .create = make_op<Conv>});
const Register nhwc_conv(
    {.domain = "com.microsoft", .type = "NhwcConv", .supports = supports, .create = make_op<NhwcConv>});

}  // namespace
}  // namespace cuvil
