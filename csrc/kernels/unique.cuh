// Distinct slices of a tensor along an axis.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"

namespace cuvil {

// The tensor is [outer, n, inner], and slice i its elements [:, i, :], compared in order. -0 equals 0, and NaN is equal
// to NaN and above all else.
struct UniqueParams {
  const void* x = nullptr;
  DType dtype = DType::kUndefined;      // a floating type, or an integer of 8, 32 or 64 bits, or bool
  int64_t outer = 1, n = 0, inner = 1;  // n > 0
  bool sorted = true;                   // else groups come in the order of their first slices
  // Filled: of each group, the index of its first slice and their number; of each slice, its group; the groups.
  int64_t* first = nullptr;    // [n]
  int64_t* counts = nullptr;   // [n]
  int64_t* inverse = nullptr;  // [n]
  int64_t* groups = nullptr;   // [1]
};

// Bytes of scratch memory that launch_unique needs.
size_t unique_scratch_bytes(int64_t n);
// cudaErrorInvalidValue for another type.
cudaError_t launch_unique(const UniqueParams& p, void* scratch, cudaStream_t stream);

}  // namespace cuvil
