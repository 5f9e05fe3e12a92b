// Adds overlapping blocks of columns up to images: Col2Im over up to three spatial dimensions.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"

namespace cuvil {

struct Col2ImParams {
  const void* x = nullptr;  // [planes, block..., count...]: count[d] blocks fit along dimension d of the padded image
  void* y = nullptr;        // [planes, image...]
  DType dtype = DType::kUndefined;  // f32, f16, bf16 or f64; sums are float, or double for f64
  int64_t planes = 0;
  // Leading dimensions that a problem lacks have extents and strides of 1.
  int image[3] = {1, 1, 1}, block[3] = {1, 1, 1}, count[3] = {1, 1, 1};
  int stride[3] = {1, 1, 1}, dilation[3] = {1, 1, 1}, pad[3] = {0, 0, 0};
};

cudaError_t launch_col2im(const Col2ImParams& params, cudaStream_t stream);

}  // namespace cuvil
