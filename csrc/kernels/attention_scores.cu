#include "device/attention_mask.cuh"
#include "device/by_type.cuh"
#include "device/reduce.cuh"
#include "kernels/attention_range.cuh"
#include "kernels/attention_scores.cuh"

namespace cuvil {
namespace {

using namespace device;

constexpr int kThreads = 128;

// A block writes the scores of one query of one head.
template <typename T>
__global__ void __launch_bounds__(kThreads) attention_scores(AttentionScoresParams params) {
  const AttentionParams& p = params.attention;
  __shared__ float shared[32];
  const int64_t row_index = blockIdx.x;
  const int row = static_cast<int>(row_index % p.s), head = static_cast<int>(row_index / p.s % p.heads);
  const int64_t batch = row_index / p.s / p.heads;
  const T* query =
      static_cast<const T*>(p.q) + batch * p.q_strides.batch + head * p.q_strides.head + row * p.q_strides.row;
  const T* keys =
      static_cast<const T*>(p.k) + batch * p.k_strides.batch + head / (p.heads / p.kv_heads) * p.k_strides.head;
  const int64_t mask_row = batch * p.mask_strides[0] + head * p.mask_strides[1] + row * p.mask_strides[2];
  const KeyRange range = key_range(p, batch);
  const int begin = range.begin(row), end = range.end(row);
  T* out = static_cast<T*>(params.scores) + row_index * params.total;

  const auto score = [&](int j) {
    const T* key = keys + j * p.k_strides.row;
    float dot = 0;
    for (int d = 0; d < p.head_size; ++d) dot = fmaf(to_compute(query[d]), to_compute(key[d]), dot);
    dot *= p.scale;
    if (params.stage >= ScoreStage::kCapped && p.softcap > 0) dot = soft_capped(dot, p.softcap);
    if (params.stage < ScoreStage::kMasked) return dot;
    if (j < begin || j >= end) return -INFINITY;
    return p.mask ? dot + mask_value<T>(p.mask, p.mask_dtype, mask_row + j * p.mask_strides[3]) : dot;
  };

  if (params.stage < ScoreStage::kSoftmax) {
    for (int j = threadIdx.x; j < params.total; j += kThreads) out[j] = from_compute<T>(score(j));
    return;
  }
  float top = -INFINITY;
  for (int j = begin + static_cast<int>(threadIdx.x); j < end; j += kThreads) top = Max()(top, score(j));
  top = block_reduce(top, Max(), -INFINITY, shared);
  const float base = top == -INFINITY ? 0.f : top;
  float sum = 0;
  for (int j = begin + static_cast<int>(threadIdx.x); j < end; j += kThreads) sum += expf(score(j) - base);
  sum = block_reduce(sum, Sum(), 0.f, shared);
  if (p.sink) {
    // Relative to the keys' maximum: where the sink is far above, the sum is +inf and all probabilities 0.
    sum += expf(sink_of<T>(p, head) - base);
  }
  const float scale = row_scale(sum, p.masked_rows_zero);
  for (int j = threadIdx.x; j < params.total; j += kThreads) out[j] = from_compute<T>(expf(score(j) - base) * scale);
}

}  // namespace

cudaError_t launch_attention_scores(const AttentionScoresParams& params, cudaStream_t stream) {
  const AttentionParams& p = params.attention;
  const int64_t rows = int64_t{p.batch} * p.heads * p.s;
  if (rows == 0 || params.total == 0) return cudaSuccess;
  if (rows > INT32_MAX || int64_t{p.s} + p.t > INT32_MAX || p.dtype == DType::kF64) return cudaErrorInvalidValue;
  return by_float_type(p.dtype, [&]<typename T>() {
    if constexpr (sizeof(T) <= 4) {
      attention_scores<T><<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(params);
    }
    return cudaGetLastError();
  });
}

}  // namespace cuvil
