// Reads the `activation` and `activation_params` attributes of the fused ops.
#pragma once

#include <array>
#include <limits>
#include <string>
#include <vector>

#include "device/activation.h"
#include "ops/op.h"

namespace cuvil {

struct ActivationName {
  const char* name;
  Activation kind;
  float a, b;  // defaults of the ONNX operator of that name
};

inline constexpr std::array<ActivationName, 14> kActivationNames = {{
    {"", Activation::kNone, 0.f, 0.f},
    {"Relu", Activation::kRelu, 0.f, 0.f},
    {"Sigmoid", Activation::kSigmoid, 0.f, 0.f},
    {"Tanh", Activation::kTanh, 0.f, 0.f},
    {"LeakyRelu", Activation::kLeakyRelu, 0.01f, 0.f},
    {"Elu", Activation::kElu, 1.f, 0.f},
    {"Clip", Activation::kClip, std::numeric_limits<float>::lowest(), std::numeric_limits<float>::max()},
    {"HardSigmoid", Activation::kHardSigmoid, 0.2f, 0.5f},
    {"HardSwish", Activation::kHardSwish, 0.f, 0.f},
    {"Swish", Activation::kSwish, 1.f, 0.f},
    {"Gelu", Activation::kGelu, 0.f, 0.f},
    {"GeluTanh", Activation::kGeluTanh, 0.f, 0.f},
    {"Softplus", Activation::kSoftplus, 0.f, 0.f},
    {"Mish", Activation::kMish, 0.f, 0.f},
}};

// "" and *out filled, or the reason why the attributes cannot be served.
inline std::string parse_activation(const NodeView& node, ActivationParams* out) {
  const std::string name = node.get<std::string>("activation", "");
  const std::vector<float> params = node.get<std::vector<float>>("activation_params", {});
  for (const ActivationName& known : kActivationNames) {
    if (name != known.name) continue;
    if (params.size() > 2) return concat("activation_params has ", params.size(), " values, at most 2 are defined");
    *out = {known.kind, params.size() > 0 ? params[0] : known.a, params.size() > 1 ? params[1] : known.b};
    return "";
  }
  return concat("activation \"", name, "\" is not known");
}

inline ActivationParams activation_of(const NodeView& node) {
  ActivationParams p;
  const std::string reason = parse_activation(node, &p);
  require(reason.empty(), reason);
  return p;
}

}  // namespace cuvil
