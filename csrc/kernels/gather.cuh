// Gather, GatherElements and GatherND. Indices count from the end when negative.
//
// An index out of range never reads outside the data: its output is 0, and `*out_of_range`, when given, is set to 1.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace cuvil {

// output[outer, j, inner] = data[outer, indices[j], inner]
struct GatherParams {
  const void* data;
  const void* indices;
  void* output;
  int element_size;  // 1, 2, 4 or 8 bytes
  bool indices64;    // int64, else int32
  int64_t outer;
  int64_t axis;   // extent of the gathered dimension
  int64_t count;  // indices
  int64_t inner;
  int* out_of_range;  // may be null
};

// output[i] = data[i with its component on `axis` replaced by indices[i]]; the output has the shape of indices.
struct GatherElementsParams {
  const void* data;
  const void* indices;
  void* output;
  int element_size;
  bool indices64;
  int rank;  // 1..8
  int axis;
  int64_t extent[8];       // of the indices
  int64_t data_stride[8];  // in elements
  int64_t axis_extent;     // of the data
  int* out_of_range;
};

// output[batch, j, :] = data[batch, indices[batch, j, 0..depth), :]
struct GatherNDParams {
  const void* data;
  const void* indices;  // int64
  void* output;
  int element_size;
  int64_t tuples;        // index tuples in all
  int64_t per_batch;     // index tuples of one batch
  int64_t batch_stride;  // elements of one batch of the data
  int64_t inner;         // elements a tuple selects
  int depth;             // 1..8
  int64_t extent[8];     // data dimensions that the tuple indexes
  int64_t stride[8];     // and their strides, in elements
  int* out_of_range;
};

cudaError_t launch_gather(const GatherParams& params, cudaStream_t stream);
cudaError_t launch_gather_elements(const GatherElementsParams& params, cudaStream_t stream);
cudaError_t launch_gather_nd(const GatherNDParams& params, cudaStream_t stream);

}  // namespace cuvil
