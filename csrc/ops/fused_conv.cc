// cuvil::FusedConv: Y = act(conv(X, W) + B + Z), X, Z and Y in NCHW or NHWC.
#include "ops/activation_attr.h"
#include "ops/conv_op.h"

namespace cuvil {
namespace {

bool nhwc(const NodeView& node) { return node.get<std::string>("layout", "NCHW") == "NHWC"; }

class FusedConv : public ConvOp {
 public:
  explicit FusedConv(const NodeView& node) : ConvOp(node, nhwc(node), activation_of(node)) {}
};

std::string supports(const NodeView& node) {
  const std::string layout = node.get<std::string>("layout", "NCHW");
  if (layout != "NCHW" && layout != "NHWC") return concat("layout \"", layout, "\" is not known");
  ActivationParams activation;
  if (std::string reason = parse_activation(node, &activation); !reason.empty()) return reason;
  return conv_reason(node, 4);
}

const Register fused_conv({.domain = "cuvil", .type = "FusedConv", .supports = supports, .create = make_op<FusedConv>});

}  // namespace
}  // namespace cuvil
