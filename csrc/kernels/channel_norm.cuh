// Instance and group normalisation: statistics over groups of channels, gain and shift of each channel.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"

namespace cuvil {

// x and y are contiguous [batch, groups, channels, inner] (instance normalisation: channels is 1). Each [channels,
// inner] block is centred and divided by sqrt(variance + epsilon), then multiplied by scale and shifted by bias. All in
// fp32 (f64 for f64), the variance is that of the centred values. y may be x.
struct ChannelNormParams {
  const void* x = nullptr;
  const void* scale = nullptr;  // [groups, channels], or [groups] when affine_by_group
  const void* bias = nullptr;   // likewise
  void* y = nullptr;
  DType dtype = DType::kUndefined;  // of all tensors: f32, f16, bf16 or f64
  int64_t batch = 0;
  int64_t groups = 0;
  int64_t channels = 0;  // of one group
  int64_t inner = 0;
  bool affine_by_group = false;
  float epsilon = 0;
};

// cudaErrorInvalidValue for another dtype.
cudaError_t launch_channel_norm(const ChannelNormParams& p, cudaStream_t stream);

}  // namespace cuvil
