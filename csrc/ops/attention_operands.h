// Operands shared by the attention ops: head views of Q, K, V and Y, the mask's broadcast, and the launch.
#pragma once

#include <string>

#include "kernels/attention.cuh"
#include "ops/op.h"

namespace cuvil {

// View of [batch, rows, heads * size] memory whose rows are `row` elements apart.
inline HeadStrides interleaved_heads(int64_t rows, int64_t row, int64_t size) { return {rows * row, row, size}; }

// View of [batch, heads, rows, size] memory.
inline HeadStrides separate_heads(int64_t heads, int64_t rows, int64_t size) {
  return {heads * rows * size, size, rows * size};
}

// For `supports`: the reason why a mask of this type cannot be added, or "".
inline std::string mask_type_reason(DType mask, DType q, bool allow_bool) {
  if (mask == q || mask == DType::kF32 || (allow_bool && mask == DType::kBool)) return "";
  return concat("the mask is ", name_of(mask), "; ", name_of(q), allow_bool ? ", f32 or bool" : " or f32",
                " is required");
}

// Broadcasts `mask` over [batch, heads, s, t] of p, which are set.
inline void set_mask(AttentionParams& p, const Tensor& mask) {
  const int64_t full[4] = {p.batch, p.heads, p.s, p.t};
  const int rank = mask.shape.rank();
  bool fits = rank <= 4;
  int64_t stride = 1;
  for (int i = rank - 1; fits && i >= 0; --i) {
    const int axis = i + 4 - rank;
    fits = mask.shape[i] == full[axis] || mask.shape[i] == 1;
    p.mask_strides[axis] = mask.shape[i] == 1 ? 0 : stride;
    stride *= mask.shape[i];
  }
  if (!fits) {
    fail(ErrorKind::kNotImplemented, "the mask has shape ", mask.shape.to_string(), ", which does not broadcast to [",
         p.batch, ",", p.heads, ",", p.s, ",", p.t, "] (batch, heads, queries, keys)");
  }
  p.mask = mask.data;
  p.mask_dtype = mask.dtype;
}

// Enqueues the attention that writes y. Without keys the result is the empty sum, 0.
inline void run_attention(OpContext& ctx, AttentionParams& p, const Tensor& y) {
  p.y = y.data;
  p.dtype = y.dtype;
  require(p.head_size <= kMaxHeadSize && p.v_head_size <= kMaxHeadSize, "the head size is ", p.head_size, " (values ",
          p.v_head_size, "); at most ", kMaxHeadSize, " is supported");
  if (y.size() == 0) return;
  if (p.t == 0) {
    CUVIL_CUDA(cudaMemsetAsync(y.data, 0, y.bytes(), ctx.stream()));
    return;
  }
  p.clusters = ctx.device().sm >= 90;
  CUVIL_CUDA(launch_attention(p, ctx.stream()));
}

// A dimension as the kernels count it.
inline int to_int(int64_t dimension) {
  require(dimension >= 0 && dimension <= INT_MAX, "dimension ", dimension, " is above ", INT_MAX);
  return static_cast<int>(dimension);
}

}  // namespace cuvil
