// Pads a tensor with a constant, its reflection, its edge or its periodic continuation.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "plan/pad_mode.h"

namespace cuvil {

// Output index o of a dimension is input index o - begin; where that is outside [0, in_extent), the mode decides.
struct PadParams {
  const void* input;  // already moved to the first element that is read
  void* output;
  int element_size;         // 1, 2, 4, 8 or 16 bytes; both addresses are aligned to it
  unsigned char value[16];  // the constant, repeated to fill 16 bytes
  PadMode mode;
  int rank;  // 1..8
  int64_t out_extent[8];
  int64_t in_extent[8];  // > 0 but for kConstant
  int64_t in_stride[8];
  int64_t begin[8];
};

cudaError_t launch_pad(const PadParams& params, cudaStream_t stream);

}  // namespace cuvil
