// Writes updates into a tensor at indices. Indices count from the end when negative; one out of range writes nothing,
// and sets `*out_of_range`, when given, to 1. Of several updates to one place, any one stays.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace cuvil {

// output[i with its component on `axis` replaced by indices[i]] = updates[i]
struct ScatterElementsParams {
  void* output;
  const void* indices;
  const void* updates;
  int element_size;  // 1, 2, 4 or 8 bytes
  bool indices64;
  int rank;  // 1..8
  int axis;
  int64_t extent[8];         // of indices and updates
  int64_t output_stride[8];  // in elements
  int64_t axis_extent;       // of the output
  int* out_of_range;
};

// output[indices[j, 0..depth), :] = updates[j, :]
struct ScatterNDParams {
  void* output;
  const int64_t* indices;
  const void* updates;
  int element_size;
  int64_t tuples;
  int64_t inner;  // elements a tuple writes
  int depth;      // 1..8
  int64_t extent[8];
  int64_t stride[8];
  int* out_of_range;
};

cudaError_t launch_scatter_elements(const ScatterElementsParams& params, cudaStream_t stream);
cudaError_t launch_scatter_nd(const ScatterNDParams& params, cudaStream_t stream);

}  // namespace cuvil
