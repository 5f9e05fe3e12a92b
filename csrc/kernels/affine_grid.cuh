// Sampling places of an affine transform, for GridSample.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"

namespace cuvil {

// y[n, (d,) h, w, i] = theta[n, i, :] . (x, y, (z,) 1) with x, y and z of the element's place along w, h and d, which
// go from -1 to 1: of the first to the last element's center with align_corners, else of the outer edges.
struct AffineGridParams {
  const void* theta = nullptr;  // [batch, rank, rank + 1]
  void* y = nullptr;            // [batch, (depth,) height, width, rank]
  DType dtype = DType::kUndefined;
  int rank = 2;  // 2 or 3
  int64_t batch = 0, depth = 1, height = 0, width = 0;
  bool align_corners = false;
};

// cudaErrorInvalidValue for a type that is not floating.
cudaError_t launch_affine_grid(const AffineGridParams& p, cudaStream_t stream);

}  // namespace cuvil
