// Group normalisation of channels-last images, with an optional sum before and SiLU after.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"

namespace cuvil {

// s = x + skip + bias; each image's group of channels is centred and divided by sqrt(variance + epsilon), multiplied by
// gamma and shifted by beta; y is that, or its SiLU. All in fp32; the variance is that of the centred values.
struct GroupNormParams {
  const void* x = nullptr;                       // [images, pixels, channels]
  const void* skip = nullptr;                    // the same, or [images, channels] when skip_by_image; null for 0
  const void* bias = nullptr;                    // [channels], null for 0
  const void *gamma = nullptr, *beta = nullptr;  // [channels]
  void* y = nullptr;
  void* sum = nullptr;                     // s rounded to the element type, or null
  float* partial = nullptr;                // scratch of group_norm_scratch(images, groups) floats
  DType dtype = DType::kUndefined;         // f32 or f16
  DType affine_dtype = DType::kUndefined;  // of gamma and beta: f32 or f16
  bool skip_by_image = false, silu = false;
  int64_t images = 0, pixels = 0, channels = 0, groups = 0;
  float epsilon = 0;
};

// Slices of pixels whose statistics are taken side by side, so that few groups fill the card.
constexpr int kGroupNormSlices = 32;
inline int64_t group_norm_scratch(int64_t images, int64_t groups) {
  return images * groups * (2 * kGroupNormSlices + 2);
}

cudaError_t launch_group_norm(const GroupNormParams& p, cudaStream_t stream);

}  // namespace cuvil
