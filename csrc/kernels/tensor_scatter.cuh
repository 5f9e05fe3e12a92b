// Writes new rows into a cache: y[b, p, index[b] + t, :] = update[b, p, t, :].
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace cuvil {

struct TensorScatterParams {
  const void* update = nullptr;    // [batch, planes, steps, row]
  const int64_t* first = nullptr;  // [batch], where each sample's steps begin; nullptr: at 0
  void* y = nullptr;               // [batch, planes, capacity, row], holding the cache
  int64_t batch = 0, planes = 0, steps = 0, capacity = 0;
  int64_t row_bytes = 0;
  bool circular = false;        // steps beyond the end go to the beginning
  int* out_of_range = nullptr;  // raised when a step has no place; it is not written then
};

// steps <= capacity.
cudaError_t launch_tensor_scatter(const TensorScatterParams& p, cudaStream_t stream);

}  // namespace cuvil
