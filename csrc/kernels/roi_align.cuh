// Pools regions of feature maps, sampled between the pixels: RoiAlign.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"

namespace cuvil {

struct RoiAlignParams {
  const void* x = nullptr;          // [n, c, height, width]
  const void* rois = nullptr;       // [count, 4]: x1, y1, x2, y2, of the type of x
  const int64_t* batch = nullptr;   // [count]: the image of each region
  void* y = nullptr;                // [count, c, out_height, out_width]
  DType dtype = DType::kUndefined;  // f32, f16, bf16 or f64
  int64_t n = 0, c = 0, count = 0;
  int height = 0, width = 0, out_height = 0, out_width = 0;
  int sampling_ratio = 0;  // samples of a bin along each side; 0: one a pixel, rounded up
  float spatial_scale = 1;
  bool max = false;             // else average
  bool half_pixel = false;      // pixel centres lie at half numbers; else regions are at least one pixel large
  int* out_of_range = nullptr;  // set to 1 when an image does not exist, whose result is then 0
};

// Computes in float (f64 in double).
cudaError_t launch_roi_align(const RoiAlignParams& params, cudaStream_t stream);

}  // namespace cuvil
