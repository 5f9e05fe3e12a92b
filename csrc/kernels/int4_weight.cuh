// A packed weight of 4 or 8 bits (device/int4_layout.cuh), as kernels take it, and the kernels that make one.
//
// The weight of row n (a column of the product) and place k: (code - zero) * scale + offset, rounded once to `dtype`.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"
#include "device/int4_layout.cuh"

namespace cuvil {

struct Int4Weight {
  const uint4* codes = nullptr;    // [row units, depth units] of unit_bytes(bits)
  const void* scales = nullptr;    // [groups, row units, 32] of dtype
  const uint8_t* zeros = nullptr;  // the same shape; null: `zero` everywhere
  const void* offsets = nullptr;   // the same shape, of dtype; null: none
  int zero = 0;
  int bits = 4;
  DType dtype = DType::kUndefined;  // f32, f16 or bf16
  int rows = 0, depth = 0;
  int group_shift = 0;  // log2 of the size of a group, 4 or more; 30 for one group
  int groups = 1;

  __host__ __device__ int row_units() const { return (rows + device::kUnitRows - 1) / device::kUnitRows; }
  __host__ __device__ int depth_units() const { return (depth + device::kUnitDepth - 1) / device::kUnitDepth; }
  size_t code_bytes() const {
    return static_cast<size_t>(row_units()) * depth_units() * static_cast<size_t>(device::unit_bytes(bits));
  }
  size_t group_values() const { return static_cast<size_t>(groups) * row_units() * device::kUnitRows; }
};

// Writes `weight.codes` from the model's.
struct PackCodesParams {
  device::CodeTable codes;
  const int32_t* order = nullptr;  // [weight.depth] places, below 0 for none; null: as they are
  Int4Weight weight;
};
cudaError_t launch_pack_codes(const PackCodesParams& p, cudaStream_t stream);

// Writes values of groups (scales or offsets), which the model has at row * stride_row + group * stride_group. Rows
// beyond the weight's get 0.
struct PackGroupsParams {
  const void* values = nullptr;  // of weight.dtype
  int64_t stride_row = 0, stride_group = 0;
  const int32_t* groups = nullptr;  // [weight.groups] the model's group of each; null: as they are
  Int4Weight weight;
  void* packed = nullptr;
};
cudaError_t launch_pack_groups(const PackGroupsParams& p, cudaStream_t stream);

// Writes zero points that are codes.
struct PackZerosParams {
  device::CodeTable codes;
  const int32_t* groups = nullptr;
  Int4Weight weight;
  uint8_t* packed = nullptr;
};
cudaError_t launch_pack_zeros(const PackZerosParams& p, cudaStream_t stream);

// Writes zero points that are not: the nearest code, and (nearest - zero point) * scale as an offset of at most half a
// scale, which is exact enough in `dtype`. Needs the packed scales.
struct PackFloatZerosParams {
  const void* values = nullptr;
  int64_t stride_row = 0, stride_group = 0;
  const int32_t* groups = nullptr;
  Int4Weight weight;
  uint8_t* packed_zeros = nullptr;
  void* packed_offsets = nullptr;
};
cudaError_t launch_pack_float_zeros(const PackFloatZerosParams& p, cudaStream_t stream);

// The weight as numbers: y is [rows, depth] of weight.dtype.
cudaError_t launch_unpack(const Int4Weight& weight, void* y, cudaStream_t stream);

// y[m, j] = x[m, order[j]], 0 where the order is below 0: the other operand in the order of a packed weight.
struct OrderColumnsParams {
  const void* x = nullptr;
  void* y = nullptr;
  const int32_t* order = nullptr;
  int element_bytes = 2;  // 2 or 4
  int64_t rows = 0, columns = 0, ordered = 0;
};
cudaError_t launch_order_columns(const OrderColumnsParams& p, cudaStream_t stream);

}  // namespace cuvil
