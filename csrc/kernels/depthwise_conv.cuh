// Depthwise 2-D convolution with bias, residual and activation: one filter a channel, no tensor cores to feed.
#pragma once

#include <cuda_runtime_api.h>

#include "core/dtype.h"
#include "device/activation.h"

namespace cuvil {

struct DepthwiseConvParams {
  const void* x = nullptr;     // [n, c, in] or, channels last, [n, in, c]
  const void* w = nullptr;     // [c, kernel]
  const void* bias = nullptr;  // [c] or null
  const void* z = nullptr;     // shape of y, or null
  void* y = nullptr;
  DType dtype = DType::kUndefined;  // f32, f16 or bf16; sums are float
  bool channels_last = false;
  int64_t n = 0, c = 0;
  int in[2] = {1, 1}, out[2] = {1, 1}, kernel[2] = {1, 1}, stride[2] = {1, 1}, dilation[2] = {1, 1}, pad[2] = {0, 0};
  ActivationParams activation;
};

// At most this many kernel positions, and fewer than 2^31 elements in x and in y.
constexpr int kMaxDepthwiseKernel = 128;
cudaError_t launch_depthwise_conv(const DepthwiseConvParams& p, cudaStream_t stream);

}  // namespace cuvil
