// Where a tensor is not zero.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"

namespace cuvil {

struct SelectParams {
  const void* x = nullptr;
  DType dtype = DType::kUndefined;  // any type of 1, 2, 4 or 8 bytes but the 8-bit floats
  int64_t n = 0;                    // > 0
  int64_t* indices = nullptr;       // [n]: the first `*count` are the indices i, ascending, with x[i] != 0
  int64_t* count = nullptr;
};

// Bytes of scratch memory that launch_select needs.
size_t select_scratch_bytes(int64_t n);
cudaError_t launch_select(const SelectParams& p, void* scratch, cudaStream_t stream);

// y[d, j] = coordinate d of the element with index indices[j] in a tensor of this shape.
struct CoordinatesParams {
  const int64_t* indices = nullptr;
  int64_t* y = nullptr;
  int64_t count = 0;
  int rank = 0;  // 1..8
  int64_t shape[8] = {};
};

cudaError_t launch_coordinates(const CoordinatesParams& p, cudaStream_t stream);

}  // namespace cuvil
