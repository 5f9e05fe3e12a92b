// Maximum, average and norm pooling over up to three spatial dimensions, in both layouts.
#pragma once

#include <cuda_runtime_api.h>

#include "core/dtype.h"

namespace cuvil {

struct PoolParams {
  const void* x = nullptr;          // [n, c, in...] or, channels last, [n, in..., c]
  void* y = nullptr;                // the same with out...
  DType dtype = DType::kUndefined;  // f32, f16, bf16 or f64
  bool max = false;                 // else average
  float norm = 0;                   // above 0: (sum of |x|^norm)^(1 / norm), no average
  bool channels_last = false;
  int64_t n = 0, c = 0;
  // Leading dimensions that a problem lacks have extent, kernel and stride 1.
  int in[3] = {1, 1, 1}, out[3] = {1, 1, 1}, kernel[3] = {1, 1, 1}, stride[3] = {1, 1, 1}, dilation[3] = {1, 1, 1};
  int pad_begin[3] = {0, 0, 0}, pad_end[3] = {0, 0, 0};
  // An average divides by the positions inside the padded input, else by those inside the input. Windows that a
  // rounded-up output lets hang over the padding count neither.
  bool count_include_pad = false;
};

// Averages and norms accumulate in float (f64 in double); a maximum keeps a NaN; a window with nothing inside the input
// gives the lowest finite value, or an average or norm of 0.
cudaError_t launch_pool(const PoolParams& p, cudaStream_t stream);

// Maxima of channels first, also of i8 and u8, with the position of each: `indices`, when given, are those of the first
// maximum in the whole of x, its spatial dimensions counted from the innermost one or, column_major, from the
// outermost. -1 where a window has nothing inside the input.
cudaError_t launch_max_pool_indices(const PoolParams& p, int64_t* indices, bool column_major, cudaStream_t stream);

// All spatial dimensions to one: x [n, c, pixels] or, channels last, [n, pixels, c]; y [n, c]; pixels above zero.
struct GlobalPoolParams {
  const void* x = nullptr;
  void* y = nullptr;
  DType dtype = DType::kUndefined;
  bool max = false;
  bool channels_last = false;
  int64_t n = 0, c = 0, pixels = 0;
};
cudaError_t launch_global_pool(const GlobalPoolParams& p, cudaStream_t stream);

}  // namespace cuvil
