// Deformable convolution of images: each weight meets the image where an offset has moved it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"

namespace cuvil {

// Sums are fp32 (double for f64). A sample between pixels is interpolated linearly; pixels outside count as 0.
struct DeformConvParams {
  const void* x = nullptr;       // [batch, channels, height, width]
  const void* w = nullptr;       // [out_channels, channels / group, kernel_h, kernel_w]
  const void* offset = nullptr;  // [batch, offset_group, kernel_h, kernel_w, 2 (y, x), out_h, out_w]
  const void* bias = nullptr;    // [out_channels] or null
  const void* mask = nullptr;    // [batch, offset_group, kernel_h, kernel_w, out_h, out_w], factors, or null
  void* y = nullptr;             // [batch, out_channels, out_h, out_w]
  DType dtype = DType::kUndefined;
  int64_t batch = 0;
  int channels = 0, height = 0, width = 0;
  int out_channels = 0, out_h = 0, out_w = 0;
  int kernel_h = 0, kernel_w = 0;
  int group = 1, offset_group = 1;  // both divide channels
  int stride_h = 1, stride_w = 1, pad_top = 0, pad_left = 0, dilation_h = 1, dilation_w = 1;
};

// cudaErrorInvalidValue for a type that is not floating.
cudaError_t launch_deform_conv(const DeformConvParams& p, cudaStream_t stream);

}  // namespace cuvil
