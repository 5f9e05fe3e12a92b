// The attention kernel for everything that the tensor-core one does not take: fp32 (computed in fp32 throughout), heads
// above 128, sizes that are not multiples of 8, unaligned rows, differing head sizes of keys and values.
#pragma once

#include "kernels/attention.cuh"

namespace cuvil {

cudaError_t launch_attention_plain(const AttentionParams& p, cudaStream_t stream);

}  // namespace cuvil
