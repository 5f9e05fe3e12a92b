// Reads the activations and the direction of LSTM, GRU and RNN nodes.
#pragma once

#include <algorithm>
#include <cctype>
#include <optional>
#include <string>
#include <vector>

#include "device/recurrent.h"
#include "ops/op.h"

namespace cuvil {

struct CellActivationName {
  const char* name;  // in lower case: ONNX Runtime does not tell cases apart
  CellActivation kind;
  int params;         // how many of alpha and beta it takes from the node's lists
  float alpha, beta;  // when the lists have none left
};

inline constexpr CellActivationName kCellActivations[] = {
    {"sigmoid", CellActivation::kSigmoid, 0, 0.f, 0.f},
    {"tanh", CellActivation::kTanh, 0, 0.f, 0.f},
    {"relu", CellActivation::kRelu, 0, 0.f, 0.f},
    {"affine", CellActivation::kAffine, 2, 1.f, 0.f},
    {"leakyrelu", CellActivation::kLeakyRelu, 1, 0.01f, 0.f},
    {"thresholdedrelu", CellActivation::kThresholdedRelu, 1, 1.f, 0.f},
    {"scaledtanh", CellActivation::kScaledTanh, 2, 1.f, 1.f},
    {"hardsigmoid", CellActivation::kHardSigmoid, 2, 0.2f, 0.5f},
    {"elu", CellActivation::kElu, 1, 1.f, 0.f},
    {"softsign", CellActivation::kSoftsign, 0, 0.f, 0.f},
    {"softplus", CellActivation::kSoftplus, 0, 0.f, 0.f},
};

// The functions of each direction one after the other, `defaults` of one direction where the node names none. Values of
// activation_alpha and activation_beta are dealt out in order to the functions that take them. "" and *out set, or the
// reason.
inline std::string parse_cell_functions(const NodeView& node, int directions, const std::vector<std::string>& defaults,
                                        std::vector<CellFunction>* out) {
  std::vector<std::string> names = node.get<std::vector<std::string>>("activations", {});
  if (names.empty())
    for (int d = 0; d < directions; ++d) names.insert(names.end(), defaults.begin(), defaults.end());
  const size_t wanted = defaults.size() * static_cast<size_t>(directions);
  // The schema of RNN has a default of two functions, whatever the direction.
  if (defaults.size() == 1 && names.size() > wanted) names.resize(wanted);
  if (names.size() != wanted) return concat("activations has ", names.size(), " entries; ", wanted, " are required");
  const auto alphas = node.get<std::vector<float>>("activation_alpha", {});
  const auto betas = node.get<std::vector<float>>("activation_beta", {});
  size_t next_alpha = 0, next_beta = 0;
  out->clear();
  for (const std::string& given : names) {
    std::string name = given;
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
    const auto known = std::find_if(std::begin(kCellActivations), std::end(kCellActivations),
                                    [&](const CellActivationName& a) { return name == a.name; });
    if (known == std::end(kCellActivations)) return concat("activation \"", given, "\" is not known");
    CellFunction f{known->kind, known->alpha, known->beta};
    if (known->params >= 1 && next_alpha < alphas.size()) f.alpha = alphas[next_alpha++];
    if (known->params >= 2 && next_beta < betas.size()) f.beta = betas[next_beta++];
    out->push_back(f);
  }
  return "";
}

// Number of directions, or 0 when the attribute is not known.
inline int directions_of(const NodeView& node) {
  const std::string direction = node.get<std::string>("direction", "forward");
  if (direction == "forward" || direction == "reverse") return 1;
  return direction == "bidirectional" ? 2 : 0;
}

}  // namespace cuvil
