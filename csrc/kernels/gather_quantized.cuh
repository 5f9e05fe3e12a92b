// Rows of a table that is quantized in blocks, gathered and dequantized in one pass.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/quantize.cuh"

namespace cuvil {

// y[o, j, i] = (data[o, indices[j], i] - zero) * scale, with the scale and zero point that `layout` gives the element
// of data. Out of range indices give 0 and set *out_of_range.
struct GatherQuantizedParams {
  const void* data = nullptr;  // [outer, axis, inner] codes
  const void* indices = nullptr;
  bool indices64 = false;
  const void* scale = nullptr;
  const void* zero_point = nullptr;  // codes as data's, or null for default_zero
  // The last dimension of zero_point in codes, and its row's length in codes when rows are padded to whole bytes.
  int64_t zero_row = 1, zero_pitch = 1;
  int default_zero = 0;
  void* y = nullptr;
  int bits = 4;  // 4 or 8
  bool is_signed = false;
  DType dtype = DType::kUndefined;  // of scale and y: f32, f16 or bf16
  int64_t outer = 0, axis = 0, count = 0, inner = 0;
  QuantLayout layout;
  int* out_of_range = nullptr;
};
cudaError_t launch_gather_quantized(const GatherQuantizedParams& p, cudaStream_t stream);

}  // namespace cuvil
