// The k largest or smallest elements along the middle of [outer, n, inner], in order, with their indices.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"

namespace cuvil {

// A block sorts this many candidates at once.
constexpr int64_t kTopKChunk = 2048;
// Longer rows are reduced chunk by chunk to k candidates each, which must at least halve them.
constexpr int64_t kTopKMaxOfLongRows = kTopKChunk / 2;

// Of equal values the one with the lower index comes first. A NaN is larger than any number.
struct TopKParams {
  const void* x;
  void* values;
  int64_t* indices;
  DType dtype;  // f32, f16, bf16, f64, i32, i64, i16, i8, u8
  int64_t outer;
  int64_t n;  // below 2^31
  int64_t inner;
  int64_t k;  // <= n; <= kTopKMaxOfLongRows when n > kTopKChunk
  bool largest;
};

// Bytes of scratch memory that launch_topk needs; 0 when a row is one chunk.
size_t topk_scratch_bytes(const TopKParams& params);

cudaError_t launch_topk(const TopKParams& params, void* scratch, cudaStream_t stream);

}  // namespace cuvil
