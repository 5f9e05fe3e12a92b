// softmax(Q K^T * scale + mask) V over keys that lie in memory: encoder, cross and cached attention.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"

namespace cuvil {

// Elements between neighbours along a dimension; the elements of one head are contiguous.
struct HeadStrides {
  int64_t batch = 0;
  int64_t row = 0;
  int64_t head = 0;
};

// Scores and softmax are fp32; q, k, v and y are rounded to their own type, and so are the probabilities of 16-bit
// inputs before they meet V. A NaN or +inf score makes its row NaN.
struct AttentionParams {
  const void* q = nullptr;     // [batch, s, heads, head_size]
  const void* k = nullptr;     // [batch, t, kv_heads, head_size]
  const void* v = nullptr;     // [batch, t, kv_heads, v_head_size]
  const void* mask = nullptr;  // added to the scores; null for none
  void* y = nullptr;           // [batch, s, heads, v_head_size]
  HeadStrides q_strides = {}, k_strides = {}, v_strides = {}, y_strides = {};
  int64_t mask_strides[4] = {};          // along [batch, head, s, t], 0 where broadcast
  DType dtype = DType::kUndefined;       // of q, k, v, y: f32, f16 or bf16
  DType mask_dtype = DType::kUndefined;  // f32, dtype, or bool (false: the key is not seen)
  int batch = 0;
  int heads = 0;
  int kv_heads = 0;  // divides heads: neighbouring query heads share one
  int s = 0;         // queries
  int t = 0;         // keys
  int head_size = 0;
  int v_head_size = 0;
  float scale = 1;
  float softcap = 0;              // above 0: scores become softcap * tanh(score / softcap) before the mask
  bool causal = false;            // query i sees no key after its place, i + offset
  bool masked_rows_zero = false;  // rows that see no key give 0; else NaN, as 0 / 0 does

  // What else bounds the keys that a query sees.
  int left = -1, right = -1;      // at most so many keys before and after its place; -1 for any number
  int offset = 0;                 // the place of the first query among the keys
  const void* lengths = nullptr;  // [batch]: keys from there on are not seen
  bool lengths64 = false;         // they are int64, else int32
  int length_bias = 0;            // added to each of them
  bool offset_by_length = false;  // the last query stands at the last key: offset is length - s
  bool one_place = false;         // all rows stand at the place of the first: they are heads of one query
  bool sink = false;              // exp(sinks[head]) joins the sum of exponentials
  const void* sinks = nullptr;    // [heads] of dtype; null for 0
  bool clusters = false;          // the card has thread block clusters (sm_90), which may share the keys of a query
};

// Largest head_size and v_head_size.
constexpr int kMaxHeadSize = 256;

// cudaErrorInvalidValue for another dtype, a larger head, or s + t above INT_MAX.
cudaError_t launch_attention(const AttentionParams& p, cudaStream_t stream);

}  // namespace cuvil
