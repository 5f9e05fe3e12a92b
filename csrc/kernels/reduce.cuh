// One pass of a reduction: [outer, reduce, inner] -> [outer, inner], or -> [outer, parts, inner] of partial results.
//
// f16, bf16 and f32 accumulate in f32, f64 in f64, integers in their own type (wrapping, as ONNX Runtime's do).
// Partial results have the accumulation type. The order of operations depends on the sizes alone: same bits every run.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"

namespace cuvil {

enum class Reduction { kSum, kMean, kMax, kMin, kProd, kL1, kL2, kSumSquare, kLogSum, kLogSumExp };

struct ReduceParams {
  const void* x;
  void* y;
  DType dtype;  // of the tensors: f32, f16, bf16, f64, i32, i64; kMax and kMin also i8, u8, bool
  Reduction kind;
  int64_t outer;
  int64_t reduce;
  int64_t inner;
  int64_t parts;   // > 1 only with y_partial
  int64_t count;   // divisor of kMean, not 0
  bool x_partial;  // x holds partial results
  bool y_partial;
};

// Bytes of a partial result.
size_t reduce_partial_size(DType dtype);

cudaError_t launch_reduce(const ReduceParams& params, cudaStream_t stream);

}  // namespace cuvil
