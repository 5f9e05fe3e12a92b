// Resamples a tensor in one to three of its dimensions.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"

namespace cuvil {

enum class ResizeMode { kNearest, kLinear, kCubic };

enum class ResizeCoordinates {
  kHalfPixel,
  kHalfPixelSymmetric,
  kPytorchHalfPixel,
  kAlignCorners,
  kAsymmetric,
  kCropAndResize,  // of the region of interest; outside the input the result is `extrapolation`
};

enum class ResizeNearest {
  kRoundPreferFloor,
  kRoundPreferCeil,
  kFloor,
  kCeil,
  kSimple,  // before opset 11: down when enlarging, up when reducing
};

struct ResizeParams {
  const void* x;
  void* y;
  DType dtype;       // kLinear, kCubic: f32, f16, bf16, f64; kLinear also u8, i8, i32 (truncated)
  int element_size;  // kNearest: bytes of an element, 1 to 16; dtype is then not read but for `extrapolation`
  ResizeMode mode;
  ResizeCoordinates coordinates;
  ResizeNearest nearest;
  float cubic_a;
  bool exclude_outside;                  // kCubic: taps outside the input weigh nothing, the others make up for them
  float extrapolation;                   // kLinear, kCubic
  unsigned char extrapolation_bits[16];  // kNearest
  int rank;                              // 1..8
  int64_t in[8];
  int64_t out[8];
  int64_t in_stride[8];
  float scale[8];
  float roi_start[8];
  float roi_end[8];
  bool resized[8];  // at most 3 are, but for kNearest
};

// cudaErrorNotSupported when more dimensions are resized than the mode allows.
cudaError_t launch_resize(const ResizeParams& params, cudaStream_t stream);

}  // namespace cuvil
