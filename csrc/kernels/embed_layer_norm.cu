#include "device/index.cuh"
#include "device/reduce.cuh"
#include "kernels/embed_layer_norm.cuh"

namespace cuvil {
namespace {

using namespace device;

constexpr int kThreads = 256;

// Row `index` of a table; null, for zeros, when there is no table or no such row.
template <typename T>
__device__ __forceinline__ const T* table_row(const void* table, int64_t index, int64_t rows, int64_t hidden,
                                              int* out_of_range) {
  if (!table) return nullptr;
  if (index >= 0 && index < rows) return static_cast<const T*>(table) + index * hidden;
  *out_of_range = 1;
  return nullptr;
}

// A block a token; its few kilobytes are read three times, from the caches after the first.
template <typename T>
__global__ void __launch_bounds__(kThreads) embed_layer_norm(EmbedLayerNormParams p) {
  __shared__ float shared[32];
  const int64_t token = blockIdx.x, i = token % p.seq, n = p.hidden;
  const int64_t place = !p.positions ? i : p.positions[p.position_rows == 1 ? i : token];
  const T* word = table_row<T>(p.word, p.ids[token], p.words, n, p.out_of_range);
  const T* position = table_row<T>(p.position, place, p.all_positions, n, p.out_of_range);
  const T* segment = table_row<T>(p.segment, p.segments ? p.segments[token] : 0, p.all_segments, n, p.out_of_range);
  const auto sum_at = [&](int64_t k) {
    float s = word ? to_compute(word[k]) : 0.f;
    if (position) s += to_compute(position[k]);
    if (segment) s += to_compute(segment[k]);
    return s;
  };
  float total = 0;
  for (int64_t k = threadIdx.x; k < n; k += kThreads) total += sum_at(k);
  const float mean = block_reduce(total, Sum(), 0.f, shared) / static_cast<float>(n);
  float squares = 0;
  for (int64_t k = threadIdx.x; k < n; k += kThreads) squares += (sum_at(k) - mean) * (sum_at(k) - mean);
  const float variance = block_reduce(squares, Sum(), 0.f, shared) / static_cast<float>(n);
  const float inv_std = 1.f / sqrtf(variance + p.epsilon);
  for (int64_t k = threadIdx.x; k < n; k += kThreads) {
    const float s = sum_at(k), gain = to_compute(static_cast<const T*>(p.gamma)[k]);
    const float shift = p.beta ? to_compute(static_cast<const T*>(p.beta)[k]) : 0.f;
    static_cast<T*>(p.y)[token * n + k] = from_compute<T>((s - mean) * inv_std * gain + shift);
    if (p.sum) static_cast<T*>(p.sum)[token * n + k] = from_compute<T>(s);
  }
}

__global__ void __launch_bounds__(kThreads) mask_count(const int32_t* mask, int32_t* count, int64_t seq) {
  __shared__ int shared[32];
  int ones = 0;
  for (int64_t i = threadIdx.x; i < seq; i += kThreads) ones += mask[blockIdx.x * seq + i] == 1;
  ones = block_reduce(ones, Sum(), 0, shared);
  if (threadIdx.x == 0) count[blockIdx.x] = ones;
}

}  // namespace

cudaError_t launch_embed_layer_norm(const EmbedLayerNormParams& p, cudaStream_t stream) {
  const int64_t tokens = p.batch * p.seq;
  if (tokens * p.hidden == 0) return cudaSuccess;
  if (tokens > kMaxIndex32) return cudaErrorInvalidValue;
  const unsigned blocks = static_cast<unsigned>(tokens);
  switch (p.dtype) {
    case DType::kF32:
      embed_layer_norm<float><<<blocks, kThreads, 0, stream>>>(p);
      break;
    case DType::kF16:
      embed_layer_norm<__half><<<blocks, kThreads, 0, stream>>>(p);
      break;
    default:
      return cudaErrorInvalidValue;
  }
  return cudaGetLastError();
}

cudaError_t launch_mask_count(const int32_t* mask, int32_t* count, int64_t batch, int64_t seq, cudaStream_t stream) {
  if (batch == 0) return cudaSuccess;
  mask_count<<<static_cast<unsigned>(batch), kThreads, 0, stream>>>(mask, count, seq);
  return cudaGetLastError();
}

}  // namespace cuvil
