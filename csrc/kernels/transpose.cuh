// Transposes the two dimensions of a strided view that are innermost in the input and in the output, through shared
// memory, so that both sides move whole vectors. All other dimensions are a batch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace cuvil {

// Output element (batch..., a, b) at batch_out + a * out_stride_a + b is the input's at batch_in + a + b * in_stride_b.
struct TransposeParams {
  const void* input;
  void* output;
  int element_size;  // 1, 2, 4 or 8 bytes
  int64_t extent_a;  // contiguous in the input
  int64_t extent_b;  // contiguous in the output
  int64_t in_stride_b;
  int64_t out_stride_a;
  int batch_rank;  // 0..14
  int64_t batch_extent[14];
  int64_t batch_in_stride[14];
  int64_t batch_out_stride[14];
};

cudaError_t launch_transpose(const TransposeParams& params, cudaStream_t stream);

}  // namespace cuvil
