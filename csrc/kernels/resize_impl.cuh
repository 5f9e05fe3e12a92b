// Shared by the nearest and the interpolating kernels: where an output index falls in the input.
#pragma once

#include "device/index.cuh"
#include "device/vec.cuh"
#include "kernels/resize.cuh"

namespace cuvil::resize_impl {

constexpr int kThreads = 256;

// What a kernel knows of a dimension.
struct Dim {
  device::FastDiv32 out;
  int32_t in;
  int64_t in_stride;
  float scale;
  float roi_start;
  float roi_end;
  bool resized;
};

struct Layout {
  int rank;
  Dim dim[8];
};

Layout layout_of(const ResizeParams& p);

// Single operations, unfused: a coordinate that ONNX Runtime rounds to a whole number must be one here too, or nearest
// would pick the neighbour.
__device__ __forceinline__ float coordinate(ResizeCoordinates how, uint32_t o, const Dim& d) {
  const float i = static_cast<float>(o), out = static_cast<float>(d.out.divisor), in = static_cast<float>(d.in);
  const float scaled = __fdiv_rn(__fadd_rn(i, 0.5f), d.scale), centre = __fsub_rn(scaled, 0.5f);
  switch (how) {
    case ResizeCoordinates::kHalfPixel:
      return centre;
    case ResizeCoordinates::kHalfPixelSymmetric: {
      const float adjustment = __fdiv_rn(out, __fmul_rn(d.scale, in));
      const float shift = __fmul_rn(__fdiv_rn(in, 2.0f), __fsub_rn(1.0f, adjustment));
      return __fsub_rn(__fadd_rn(shift, scaled), 0.5f);
    }
    case ResizeCoordinates::kPytorchHalfPixel:
      return d.out.divisor > 1 ? centre : 0.0f;
    case ResizeCoordinates::kAlignCorners:
      return d.out.divisor == 1 ? 0.0f : __fdiv_rn(__fmul_rn(i, in - 1), out - 1);
    case ResizeCoordinates::kAsymmetric:
      return __fdiv_rn(i, d.scale);
    default: {  // kCropAndResize
      if (d.out.divisor == 1) return __fmul_rn(0.5f, __fmul_rn(__fadd_rn(d.roi_start, d.roi_end), in - 1));
      const float span = __fmul_rn(__fmul_rn(i, __fsub_rn(d.roi_end, d.roi_start)), in - 1);
      return __fadd_rn(__fmul_rn(d.roi_start, in - 1), __fdiv_rn(span, out - 1));
    }
  }
}

__device__ __forceinline__ bool outside(float x, const Dim& d) { return x < 0 || x > static_cast<float>(d.in - 1); }

cudaError_t launch_nearest(const ResizeParams& p, uint32_t total, cudaStream_t stream);
cudaError_t launch_interpolating(const ResizeParams& p, uint32_t total, cudaStream_t stream);

}  // namespace cuvil::resize_impl
