// Writes updates into a tensor at indices, or combines them with what is there. Indices count from the end when
// negative; one out of range writes nothing, and sets `*out_of_range`, when given, to 1. Of several updates written to
// one place, any one stays.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"

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

  int64_t updates_count() const {
    int64_t n = 1;
    for (int d = 0; d < rank; ++d) n *= extent[d];
    return n;
  }
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

  int64_t updates_count() const { return tuples * inner; }
};

cudaError_t launch_scatter_elements(const ScatterElementsParams& params, cudaStream_t stream);
cudaError_t launch_scatter_nd(const ScatterNDParams& params, cudaStream_t stream);

enum class ScatterReduction { kAdd, kMul, kMax, kMin };  // max and min keep a NaN

// output[place] = output[place] op update, every update once, rounded to the element type each time. The result does
// not depend on the order of the updates where rounding does not either (integers, max, min). Float sums and products
// are taken in the order of the updates, the same bits every run, up to kOrderedUpdates updates along the axis (tuples
// of ScatterND); beyond that they are atomic, and updates of one place are added in any order.
// cudaErrorInvalidValue for a dtype that is no number.
constexpr int64_t kOrderedUpdates = 256;
cudaError_t launch_scatter_elements(const ScatterElementsParams& params, ScatterReduction reduction, DType dtype,
                                    cudaStream_t stream);
cudaError_t launch_scatter_nd(const ScatterNDParams& params, ScatterReduction reduction, DType dtype,
                              cudaStream_t stream);

}  // namespace cuvil
