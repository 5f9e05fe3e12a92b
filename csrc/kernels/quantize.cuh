// Linear quantization to integers of 2, 4, 8 and 16 bits and to 8-bit floats, and back.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"

namespace cuvil {

// Which scale and zero point an element has. The tensor is [outer, axis, inner]; element (o, a, i) uses number
// o * stride_outer + a / block * stride_axis + i * stride_inner. All strides 0: one scale for the tensor.
struct QuantLayout {
  int64_t outer = 1, axis = 1, inner = 1, block = 1;
  int64_t stride_outer = 0, stride_axis = 0, stride_inner = 0;

  int64_t size() const { return outer * axis * inner; }
};

// y = saturate(round(x / scale) + zero_point), computed in fp32, halves to even; a NaN becomes the lowest code.
// 8-bit floats: y = x / scale, rounded; what is too large becomes the largest number when `saturate`, else NaN (e4m3)
// or infinity (e5m2); the zero point is not read.
struct QuantizeParams {
  const void* x = nullptr;
  const void* scale = nullptr;
  const void* zero_point = nullptr;       // of y's type, or null for 0
  void* y = nullptr;                      // integers below 8 bits: several a byte, the first in the lowest bits
  DType x_dtype = DType::kUndefined;      // f32, f16, bf16 or i32
  DType scale_dtype = DType::kUndefined;  // f32, f16 or bf16
  DType y_dtype = DType::kUndefined;      // u8, i8, u16, i16, u4, i4, u2, i2, f8e4m3 or f8e5m2
  QuantLayout layout;
  bool saturate = true;
};

// y = (x - zero_point) * scale, computed in fp32.
struct DequantizeParams {
  const void* x = nullptr;
  const void* scale = nullptr;
  const void* zero_point = nullptr;  // of x's type, or null for 0; not read for 8-bit floats
  void* y = nullptr;
  DType x_dtype = DType::kUndefined;  // as QuantizeParams::y_dtype, or i32
  DType scale_dtype = DType::kUndefined;
  DType y_dtype = DType::kUndefined;  // f32, f16 or bf16
  QuantLayout layout;
};

// cudaErrorInvalidValue for other dtypes.
cudaError_t launch_quantize(const QuantizeParams& p, cudaStream_t stream);
cudaError_t launch_dequantize(const DequantizeParams& p, cudaStream_t stream);

// Scale and zero point (u8) of DynamicQuantizeLinear: the range of x, widened to hold 0, over 255 steps. x holds at
// least one element; `partial` is scratch of kRangeBlocks * 2 floats.
constexpr int kRangeBlocks = 256;
struct DynamicRangeParams {
  const float* x = nullptr;
  int64_t count = 0;
  float* partial = nullptr;
  float* scale = nullptr;
  uint8_t* zero_point = nullptr;
};
cudaError_t launch_dynamic_range(const DynamicRangeParams& p, cudaStream_t stream);

}  // namespace cuvil
