// Outputs whose size is known only when data on the GPU has been computed.
#pragma once

#include <vector>

#include "ops/op.h"

namespace cuvil {

// Waits for what the stream was given and returns `n` integers of device memory. Throws while a graph is captured:
// a replay could not allocate an output of another size.
inline std::vector<int64_t> read_sizes(OpContext& ctx, const int64_t* device, size_t n) {
  require(!ctx.capturing(), "the size of the output depends on data: the node cannot be part of a CUDA graph");
  std::vector<int64_t> values(n);
  CUVIL_CUDA(cudaMemcpyAsync(values.data(), device, n * sizeof(int64_t), cudaMemcpyDeviceToHost, ctx.stream()));
  CUVIL_CUDA(cudaStreamSynchronize(ctx.stream()));
  return values;
}

}  // namespace cuvil
