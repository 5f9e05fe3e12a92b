// The bias of a product as one value a column.
#pragma once

#include "core/cuda_check.h"
#include "kernels/broadcast_scale.cuh"
#include "ops/op.h"

namespace cuvil {

// Input `index` as n values, or null when it is absent; a single value is written out in scratch memory.
inline const void* bias_row(OpContext& ctx, int index, int64_t n) {
  if (!ctx.has_input(index)) return nullptr;
  const Tensor bias = ctx.input(index);
  const int rank = bias.shape.rank();
  const bool row = rank == 0 || bias.shape[rank - 1] == bias.size();  // every other dimension is 1
  require(row && (bias.size() == n || bias.size() == 1), "bias of shape ", bias.shape.to_string(),
          " does not broadcast along ", n, " columns");
  if (bias.size() == n) return bias.data;
  BroadcastScaleParams b;
  b.y = ctx.scratch(static_cast<size_t>(n) * size_of(bias.dtype));
  b.c = bias.data;
  b.dtype = bias.dtype;
  b.rows = 1, b.cols = n;
  CUVIL_CUDA(launch_broadcast_scale(b, ctx.stream()));
  return b.y;
}

}  // namespace cuvil
