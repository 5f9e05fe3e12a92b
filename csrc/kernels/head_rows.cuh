// The rows of heads on their way into an attention: a bias added, rotated by their position, put behind what a cache
// holds.
#pragma once

#include "kernels/attention.cuh"

namespace cuvil {

// y = rotate(x + bias), rounded to its type after each.
struct HeadRows {
  const void* x = nullptr;
  void* y = nullptr;
  HeadStrides x_strides = {}, y_strides = {};
  const void* bias = nullptr;  // [heads, size], or null
  int heads = 0;
  int size = 0;
  bool rotate = false;
  bool append = false;  // row r goes to row first + r of y, where the cache's own rows end
};

// The cache of batch entry b holds `past` rows first; with lengths, it has lengths[b] + 1 rows with the new ones, so
// that lengths[b] + 1 - rows come first.
struct HeadRowsParams {
  HeadRows parts[3] = {};
  int count = 0;
  DType dtype = DType::kUndefined;  // of all tensors: f32, f16 or bf16
  int batch = 0, rows = 0;
  int past = 0;
  const int32_t* lengths = nullptr;  // [batch] or null
  int capacity = 0;                  // rows of y where parts append; rows that do not fit are dropped

  // Rotation: with c = cos[position, i] and s = sin[position, i], the pair (a, b) becomes (a c - b s, a s + b c).
  const void* cos = nullptr;
  const void* sin = nullptr;           // both [cache_rows, rotary / 2]
  const int64_t* positions = nullptr;  // [batch, rows]; null: positions count from where the cache ends
  bool one_position = false;           // positions[0] is that of every first row
  bool interleaved = false;            // pairs are neighbours; else rotary / 2 apart
  int rotary = 0;                      // even: what is rotated of a head
  int64_t cache_rows = 0;
  int* out_of_range = nullptr;  // set to 1 where a row is dropped or a position is outside of cos, which is not rotated
};

// cudaErrorInvalidValue for another dtype.
cudaError_t launch_head_rows(const HeadRowsParams& p, cudaStream_t stream);

// Fills a cache's new buffer y with what it held in another one: rows [0, first) of each head, `first` as above; rows
// from first + rows on become zeros, those between are left.
struct CacheCopyParams {
  const void* x = nullptr;  // [batch, heads, past, row_bytes]
  void* y = nullptr;        // [batch, heads, capacity, row_bytes]
  int64_t batch = 0, heads = 0, past = 0, capacity = 0, rows = 0, row_bytes = 0;
  const int32_t* lengths = nullptr;  // [batch] or null: all of `past`
  bool empty = false;                // x holds nothing yet, whatever the lengths
};

cudaError_t launch_cache_copy(const CacheCopyParams& p, cudaStream_t stream);

}  // namespace cuvil
