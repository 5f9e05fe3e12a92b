// The activations that FusedConv and FusedMatMul end with: their numbers and parameters, for host and device code.
#pragma once

namespace cuvil {

// Names as in the `activation` attribute of cuvil::FusedConv; kNone is "".
enum class Activation : int {
  kNone,
  kRelu,
  kSigmoid,
  kTanh,
  kLeakyRelu,    // alpha
  kElu,          // alpha
  kClip,         // min, max
  kHardSigmoid,  // alpha, beta
  kHardSwish,
  kSwish,  // alpha: x * sigmoid(alpha * x)
  kGelu,
  kGeluTanh,
  kSoftplus,
  kMish,
};

struct ActivationParams {
  Activation kind = Activation::kNone;
  float a = 0;  // alpha or min
  float b = 0;  // beta or max
};

}  // namespace cuvil
