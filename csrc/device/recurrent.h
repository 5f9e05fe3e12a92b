// Activations of LSTM, GRU and RNN nodes, for host and device code.
#pragma once

namespace cuvil {

enum class CellActivation : int {
  kSigmoid,
  kTanh,
  kRelu,
  kAffine,           // alpha * x + beta
  kLeakyRelu,        // alpha
  kThresholdedRelu,  // alpha
  kScaledTanh,       // alpha * tanh(beta * x)
  kHardSigmoid,      // alpha, beta
  kElu,              // alpha
  kSoftsign,
  kSoftplus,
};

struct CellFunction {
  CellActivation kind = CellActivation::kSigmoid;
  float alpha = 0, beta = 0;
};

}  // namespace cuvil
