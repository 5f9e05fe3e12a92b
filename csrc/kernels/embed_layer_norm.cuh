// The sum of word, position and segment embeddings of each token, normalised over its elements.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"

namespace cuvil {

// s = word[ids[b, i]] + position[p] + segment[segments[b, i]], where p is positions[b, i], positions[0, i] when there
// is one row of them, or i without. y = (s - mean) / sqrt(variance + epsilon) * gamma + beta, in fp32. An index outside
// its table counts as a row of zeros and sets *out_of_range.
struct EmbedLayerNormParams {
  const int32_t* ids = nullptr;  // [batch, seq]
  const int32_t* segments = nullptr;
  const int32_t* positions = nullptr;
  int64_t position_rows = 0;  // of positions: batch or 1
  const void *word = nullptr, *position = nullptr, *segment = nullptr;
  int64_t words = 0, all_positions = 0, all_segments = 0;  // rows of the tables
  const void *gamma = nullptr, *beta = nullptr;            // [hidden]
  void* y = nullptr;                                       // [batch, seq, hidden]
  void* sum = nullptr;                                     // s, or null
  DType dtype = DType::kUndefined;                         // of tables, gamma, beta, y and sum: f32 or f16
  int64_t batch = 0, seq = 0, hidden = 0;
  float epsilon = 0;
  int* out_of_range = nullptr;
};
cudaError_t launch_embed_layer_norm(const EmbedLayerNormParams& p, cudaStream_t stream);

// count[b] = number of ones among mask[b, :].
cudaError_t launch_mask_count(const int32_t* mask, int32_t* count, int64_t batch, int64_t seq, cudaStream_t stream);

}  // namespace cuvil
