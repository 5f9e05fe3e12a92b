// Keys and values of the attention ops on their way into the cache that the attention reads.
#pragma once

#include "kernels/head_rows.cuh"
#include "ops/attention_operands.h"
#include "ops/op.h"

namespace cuvil {

// [batch, rows, heads, size] somewhere in memory.
struct HeadView {
  const void* data = nullptr;
  int64_t heads = 0, rows = 0, size = 0;
  HeadStrides strides = {};
};

// Of a [batch, heads, rows, size] tensor.
inline HeadView separate_view(const Tensor& x) {
  const Dims& d = x.shape;
  return {x.data, d[1], d[2], d[3], separate_heads(d[1], d[2], d[3])};
}

inline Tensor scratch(OpContext& ctx, DType dtype, const Dims& shape) {
  Tensor t{nullptr, dtype, shape};
  t.data = t.size() ? ctx.scratch(t.bytes()) : nullptr;
  return t;
}

// Appends new rows of keys and values to caches. `add` each, then `run` once.
struct CacheAppend {
  int64_t batch = 0;
  int64_t past = 0;      // rows of the buffers that hold what came before
  int64_t rows = 0;      // new ones
  int64_t capacity = 0;  // rows of the buffers that hold both
  DType dtype = DType::kUndefined;
  const int32_t* lengths = nullptr;  // [batch]: the rows of both, less one; null: past + rows
  bool empty = false;                // nothing came before, whatever `past`
  HeadRowsParams params = {};        // the caller sets what concerns rotation, and may add parts that do not append

  // Has `view` appended to `before` in `after`, [batch, heads, capacity, size], and makes `view` that of `after`.
  // Where both are one buffer the rows that are there stay. `before` may be an empty tensor.
  HeadRows& add(OpContext& ctx, const Tensor& before, HeadView& view, const Tensor& after) {
    if (before.data != after.data || before.data == nullptr) {
      CUVIL_CUDA(launch_cache_copy({.x = before.data,
                                    .y = after.data,
                                    .batch = batch,
                                    .heads = view.heads,
                                    .past = past,
                                    .capacity = capacity,
                                    .rows = rows,
                                    .row_bytes = view.size * static_cast<int64_t>(size_of(dtype)),
                                    .lengths = lengths,
                                    .empty = empty},
                                   ctx.stream()));
    }
    HeadRows& part = params.parts[params.count++];
    part = {.x = view.data,
            .y = after.data,
            .x_strides = view.strides,
            .y_strides = separate_heads(view.heads, capacity, view.size),
            .heads = to_int(view.heads),
            .size = to_int(view.size),
            .append = true};
    view = {after.data, view.heads, capacity, view.size, part.y_strides};
    return part;
  }

  void run(OpContext& ctx) {
    params.dtype = dtype;
    params.batch = to_int(batch);
    params.rows = to_int(rows);
    params.past = empty ? 0 : to_int(past);
    params.lengths = empty ? nullptr : lengths;
    params.capacity = to_int(capacity);
    CUVIL_CUDA(launch_head_rows(params, ctx.stream()));
  }
};

}  // namespace cuvil
