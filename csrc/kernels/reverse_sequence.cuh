// Reverses the first elements of each sequence of a batch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace cuvil {

// x and y are contiguous [time, batch, inner], or [batch, time, inner]. Of sequence b, the first lengths[b] steps are
// reversed and the others stay. A length outside [0, time] leaves the sequence as it is and sets `*out_of_range`.
struct ReverseSequenceParams {
  const void* x;
  void* y;  // not x
  const int64_t* lengths;
  int element_size;  // 1, 2, 4, 8 or 16 bytes, to which x and y are aligned
  int64_t time;
  int64_t batch;
  int64_t inner;
  bool time_first;
  int* out_of_range;  // may be null
};

cudaError_t launch_reverse_sequence(const ReverseSequenceParams& params, cudaStream_t stream);

}  // namespace cuvil
