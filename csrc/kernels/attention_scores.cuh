// The scores of an attention as an output of their own, for those who look into a model. Made for few and short
// sequences: every score is computed again for each pass over its row.
#pragma once

#include "kernels/attention.cuh"

namespace cuvil {

// What of Q K^T * scale is written.
enum class ScoreStage { kRaw, kCapped, kMasked, kSoftmax };

struct AttentionScoresParams {
  AttentionParams attention = {};  // v and y are not used; t keys are covered by the mask and may be seen
  void* scores = nullptr;          // [batch, heads, s, total] of attention.dtype
  int total = 0;                   // keys that there are, at least attention.t
  ScoreStage stage = ScoreStage::kRaw;
};

// cudaErrorInvalidValue for another dtype, or s + t above INT_MAX.
cudaError_t launch_attention_scores(const AttentionScoresParams& p, cudaStream_t stream);

}  // namespace cuvil
