// Samples images at given positions: GridSample over two or three spatial dimensions.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"

namespace cuvil {

enum class GridSampleMode { kNearest, kLinear, kCubic };
enum class GridSamplePadding { kZeros, kBorder, kReflection };

struct GridSampleParams {
  const void* x = nullptr;     // [n, c, in...]
  const void* grid = nullptr;  // [n, positions, spatial]: coordinates in [-1, 1], that of the innermost dimension first
  void* y = nullptr;           // [n, c, positions]
  DType dtype = DType::kUndefined;       // of x and y: f32, f16, bf16 or f64
  DType grid_dtype = DType::kUndefined;  // dtype or f32
  int spatial = 2;                       // 2 or 3; kCubic only with 2
  int64_t n = 0, c = 0, positions = 0;
  int in[3] = {1, 1, 1};  // outermost first; their product is below 2^30, none is 0
  GridSampleMode mode = GridSampleMode::kLinear;
  GridSamplePadding padding = GridSamplePadding::kZeros;
  bool align_corners = false;  // -1 and 1 are the centres of the outermost pixels, else their outer edges
};

// Coordinates and weights are float (double for f64). A NaN counts as a coordinate far outside.
cudaError_t launch_grid_sample(const GridSampleParams& params, cudaStream_t stream);

}  // namespace cuvil
