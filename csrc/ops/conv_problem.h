// One convolution with its epilogue, as a value: Y = act(conv(X, W) + bias + Z).
#pragma once

#include <compare>
#include <string>

#include "device/activation.h"
#include "ops/op.h"
#include "plan/window.h"

namespace cuvil {

struct ConvProblem {
  DType dtype = DType::kF32;  // of every tensor
  // false: X, Y, Z are [N, C, spatial...] and W [K, C/groups, kernel...]; true: [N, spatial..., C] and
  // [K, kernel..., C/groups].
  bool channels_last = false;
  // ConvTranspose: W is [C, K/groups, kernel...], and the window is that of the convolution whose gradient this is,
  // with `in` and `out` still this problem's input and output.
  bool transposed = false;
  int64_t n = 0, c = 0, k = 0, groups = 1;
  Window window;  // 2 or 3 spatial dimensions; a 1-D convolution has a first dimension of 1
  bool bias = false, z = false;
  Activation activation = Activation::kNone;
  float activation_a = 0, activation_b = 0;
  bool tf32 = false;   // f32 may run in TF32
  int alignment = 16;  // of every pointer, in bytes

  auto operator<=>(const ConvProblem&) const = default;
  ActivationParams activation_params() const { return {activation, activation_a, activation_b}; }
  int64_t x_count() const { return n * c * window.in_size(); }
  int64_t y_count() const { return n * k * window.out_size(); }
  std::string key() const;
};

struct ConvOperands {
  const void* x = nullptr;
  const void* w = nullptr;  // in the problem's layout
  const void* bias = nullptr;
  const void* z = nullptr;
  void* y = nullptr;
};

// A 1-D convolution as a 2-D one over an image of height 1: cuDNN starts at two dimensions.
inline Window at_least_2d(const Window& w) {
  if (w.rank != 1) return w;
  Window v;
  v.rank = 2;
  v.in = {1, w.in[0]};
  v.out = {1, w.out[0]};
  v.kernel = {1, w.kernel[0]};
  v.stride = {1, w.stride[0]};
  v.dilation = {1, w.dilation[0]};
  v.pad_begin = {0, w.pad_begin[0]};
  v.pad_end = {0, w.pad_end[0]};
  return v;
}

}  // namespace cuvil
