// Copies a strided view of a tensor into a contiguous one.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace cuvil {

struct StridedCopyParams {
  const void* input;  // already moved to the view's first element
  void* output;       // aligned to element_size
  int element_size;   // 1, 2, 4, 8 or 16 bytes; `input` and all strides keep its alignment
  int rank;           // 1..16, collapsed: the fewer the faster
  int64_t extent[16];
  int64_t stride[16];  // of the input, in elements; zero and negative ones are allowed
};

cudaError_t launch_strided_copy(const StridedCopyParams& params, cudaStream_t stream);

}  // namespace cuvil
