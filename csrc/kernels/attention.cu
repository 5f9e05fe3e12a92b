#include "kernels/attention.cuh"
#include "kernels/attention_mma.cuh"
#include "kernels/attention_plain.cuh"

namespace cuvil {

constexpr int kFewKeys = 16;

bool attention_mma_takes(const AttentionParams& p) {
  const auto aligned = [](const void* data, const HeadStrides& s) {
    return reinterpret_cast<uintptr_t>(data) % 16 == 0 && s.batch % 8 == 0 && s.row % 8 == 0 && s.head % 8 == 0;
  };
  // A few keys leave most of a tile empty: the plain kernel is as fast there, and keeps its probabilities in fp32.
  return (p.dtype == DType::kF16 || p.dtype == DType::kBF16) && p.t > kFewKeys && p.head_size == p.v_head_size &&
         p.head_size % 8 == 0 && p.head_size <= 128 && aligned(p.q, p.q_strides) && aligned(p.k, p.k_strides) &&
         aligned(p.v, p.v_strides) && aligned(p.y, p.y_strides);
}

cudaError_t launch_attention(const AttentionParams& p, cudaStream_t stream) {
  if (int64_t{p.batch} * p.heads * p.s * p.v_head_size == 0) return cudaSuccess;
  if (p.head_size > kMaxHeadSize || p.v_head_size > kMaxHeadSize) return cudaErrorInvalidValue;
  if (int64_t{p.s} + p.t > INT32_MAX) return cudaErrorInvalidValue;
  if (!attention_mma_takes(p)) return launch_attention_plain(p, stream);
  return p.dtype == DType::kF16 ? launch_attention_f16(p, stream) : launch_attention_bf16(p, stream);
}

}  // namespace cuvil
