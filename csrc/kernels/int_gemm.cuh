// Products of 8-bit integer matrices: operands in one packed form, the product, and what is made of it.
//
// Packed: int8 rows along the summed dimension, each `kp` long, a multiple of 16, zeros behind the first k. Unsigned
// numbers are stored less 128, and the sum of each row is kept, so that zero points can be taken out afterwards:
//   sum (a - za)(b - zb) = sum a b - za sum b - zb sum a + k za zb.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"

namespace cuvil {

constexpr int64_t kPackedAlign = 16;
inline int64_t packed_k(int64_t k) { return (k + kPackedAlign - 1) / kPackedAlign * kPackedAlign; }

// Rows [rows, k] of u8 or i8 to packed rows and their sums.
struct PackRowsParams {
  const void* x = nullptr;
  bool is_unsigned = false;
  int8_t* y = nullptr;      // [rows, kp]
  int32_t* sums = nullptr;  // [rows]
  int64_t rows = 0, k = 0;
};
cudaError_t launch_pack_rows(const PackRowsParams& p, cudaStream_t stream);

// Columns of [batch, k, n] to packed rows: y is [batch, padded_n, kp], of which rows n to padded_n stay as they were.
struct PackColumnsParams {
  const void* x = nullptr;
  bool is_unsigned = false;
  int8_t* y = nullptr;
  int32_t* sums = nullptr;  // [batch, padded_n]
  int64_t batch = 1, k = 0, n = 0, padded_n = 0;
};
cudaError_t launch_pack_columns(const PackColumnsParams& p, cudaStream_t stream);

// Windows of an image [images, groups * channels, in...] to packed rows, [images, groups, padded_pixels, kp], one for
// each output pixel and k = channels * kernel. Places in the padding hold the zero point.
struct PackWindowsParams {
  const void* x = nullptr;
  bool is_unsigned = false;
  const void* zero_point = nullptr;  // of x's type, or null for 0
  int8_t* y = nullptr;
  int32_t* sums = nullptr;  // [images, groups, padded_pixels]
  int64_t images = 0, groups = 1, channels = 0, pixels = 0, padded_pixels = 0;
  int rank = 0;  // spatial dimensions, 1..3
  int64_t in[3] = {}, out[3] = {}, kernel[3] = {}, stride[3] = {}, dilation[3] = {}, pad[3] = {};
};
cudaError_t launch_pack_windows(const PackWindowsParams& p, cudaStream_t stream);

// d[b, i, j] = sum a[b, i, :] * b[b, j, :] modulo 2^32. Strides in elements; a and b are 16-byte aligned.
struct IntGemmParams {
  const int8_t* a = nullptr;  // packed [batch, m, kp]
  const int8_t* b = nullptr;  // packed [batch, n, kp]
  int32_t* d = nullptr;       // [batch, m, n]
  int64_t m = 0, n = 0, kp = 0, batch = 1, stride_a = 0, stride_b = 0;

  auto operator<=>(const IntGemmParams&) const = default;
};
cudaError_t launch_int_gemm(const IntGemmParams& p, cudaStream_t stream);

// One number for all rows (columns), or one each: element i % count.
struct Operand {
  const void* data = nullptr;
  DType dtype = DType::kUndefined;
  int64_t count = 1;
};

// y[b, i, j] from the product of packed operands. By y's type:
//   i32: the sum without zero points
//   u8, i8: that plus bias (i32, of rows), times row_scale * column_scale / y_scale, rounded, plus y_zero, saturated
//   f32, f16: that times row_scale * column_scale, plus bias (of columns)
struct IntEpilogueParams {
  const int32_t* acc = nullptr;       // [batch, m, ld]
  const int32_t* row_sums = nullptr;  // [m] and a batch every row_sums_stride
  const int32_t* column_sums = nullptr;
  int64_t row_sums_stride = 0, column_sums_stride = 0;
  void* y = nullptr;  // [batch, m, n]
  DType y_dtype = DType::kUndefined;
  int64_t batch = 1, m = 0, n = 0, ld = 0, k = 0;
  bool rows_unsigned = false, columns_unsigned = false;  // stored less 128
  Operand row_zero, column_zero;                         // u8 or i8, null for 0
  Operand row_scale, column_scale, y_scale;              // f32, f16 or bf16
  Operand y_zero;                                        // of y's type, null for 0
  Operand bias;
  // Batch b's rows begin at b * row_offset in row_zero, row_scale and a bias of rows.
  int64_t row_offset = 0;
};
cudaError_t launch_int_epilogue(const IntEpilogueParams& p, cudaStream_t stream);

}  // namespace cuvil
