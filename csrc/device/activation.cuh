// Device functions of cuvil::Activation, in float or double.
#pragma once

#include <cuda_runtime.h>

#include "device/activation.h"

namespace cuvil::device {

template <typename T>
__device__ __forceinline__ T sigmoid(T x) {
  // exp of a non-positive number only: no overflow on either side.
  const T e = exp(-fabs(x));
  const T r = T(1) / (T(1) + e);
  return x >= T(0) ? r : e * r;
}

template <typename T>
__device__ __forceinline__ T softplus(T x) {
  return (x > T(0) ? x : T(0)) + log1p(exp(-fabs(x)));
}

template <typename T>
__device__ __forceinline__ T gelu(T x) {
  return T(0.5) * x * (T(1) + erf(x * T(0.70710678118654752440)));
}

template <typename T>
__device__ __forceinline__ T gelu_tanh(T x) {
  const T inner = T(0.79788456080286535588) * (x + T(0.044715) * x * x * x);
  return T(0.5) * x * (T(1) + tanh(inner));
}

// Bounds written so that a NaN passes through.
template <typename T>
__device__ __forceinline__ T clip(T x, T low, T high) {
  x = x < low ? low : x;
  return x > high ? high : x;
}

template <typename T>
__device__ __forceinline__ T activate(ActivationParams p, T x) {
  const T a = T(p.a), b = T(p.b);
  switch (p.kind) {
    case Activation::kNone:
      return x;
    case Activation::kRelu:
      return x < T(0) ? T(0) : x;
    case Activation::kSigmoid:
      return sigmoid(x);
    case Activation::kTanh:
      return tanh(x);
    case Activation::kLeakyRelu:
      return x < T(0) ? a * x : x;
    case Activation::kElu:
      return x < T(0) ? a * expm1(x) : x;
    case Activation::kClip:
      return clip(x, a, b);
    case Activation::kHardSigmoid:
      return clip(a * x + b, T(0), T(1));
    case Activation::kHardSwish:
      return x * clip(x * T(1.0 / 6.0) + T(0.5), T(0), T(1));
    case Activation::kSwish:
      return x * sigmoid(a * x);
    case Activation::kGelu:
      return gelu(x);
    case Activation::kGeluTanh:
      return gelu_tanh(x);
    case Activation::kSoftplus:
      return softplus(x);
    case Activation::kMish:
      return x * tanh(softplus(x));
  }
  return x;
}

// The activation as a kernel's template parameter. Known to the compiler, it spares a kernel the instructions of all
// the others, whose loading costs a small tensor more than its arithmetic.
template <Activation kKind>
struct Known {
  template <typename C>
  static __device__ __forceinline__ C apply(ActivationParams p, C x) {
    p.kind = kKind;
    return activate<C>(p, x);
  }
};

struct AnyActivation {
  template <typename C>
  static __device__ __forceinline__ C apply(const ActivationParams& p, C x) {
    return activate<C>(p, x);
  }
};

}  // namespace cuvil::device
