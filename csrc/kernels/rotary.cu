#include "device/index.cuh"
#include "device/vec.cuh"
#include "kernels/rotary.cuh"

namespace cuvil {
namespace {

using namespace device;

constexpr int kThreads = 256;

// Row of cos and sin for token (b, s), or -1.
__device__ __forceinline__ int64_t cache_row(const RotaryParams& p, int64_t b, int64_t s) {
  const int64_t token = b * p.seq + s;
  const int64_t row = !p.positions ? token : p.one_position ? p.positions[0] + s : p.positions[token];
  if (row >= 0 && row < p.cache_rows) return row;
  *p.out_of_range = 1;
  return -1;
}

// A thread rotates V pairs, or copies V elements behind the rotated ones. `chunks`: threads a head of a token.
template <typename T, int V, typename Div>
__global__ void __launch_bounds__(kThreads) rotary(RotaryParams p, int64_t total, Div chunks, Div inner, Div outer) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= total) return;
  typename Div::Index line, chunk, rest, last, first, middle;
  chunks.divmod(static_cast<typename Div::Index>(i), line, chunk);
  inner.divmod(line, rest, last);     // inner: heads, or seq when heads come first
  outer.divmod(rest, first, middle);  // outer: the other one
  const T* x = static_cast<const T*>(p.x) + static_cast<int64_t>(line) * p.head_size;
  T* y = static_cast<T*>(p.y) + static_cast<int64_t>(line) * p.head_size;
  const int64_t half = p.rotary / 2, at = static_cast<int64_t>(chunk) * V;
  const int64_t row = at < half ? cache_row(p, first, p.heads_first ? last : middle) : -1;
  if (at >= half) {
    const int64_t j = p.rotary + (at - half);
    store<T, V>(y + j, load<T, V>(x + j));
    return;
  }
  const int64_t low = p.interleaved ? 2 * at : at, high = p.interleaved ? 2 * at + V : at + half;
  const Vec<T, V> a = load<T, V>(x + low), b = load<T, V>(x + high);
  if (row < 0) {
    store<T, V>(y + low, a);
    store<T, V>(y + high, b);
    return;
  }
  const Vec<T, V> c = load<T, V>(static_cast<const T*>(p.cos) + row * half + at);
  const Vec<T, V> s = load<T, V>(static_cast<const T*>(p.sin) + row * half + at);
  float in[2 * V], out[2 * V];
#pragma unroll
  for (int k = 0; k < V; ++k) in[k] = to_compute(a[k]), in[V + k] = to_compute(b[k]);
#pragma unroll
  for (int k = 0; k < V; ++k) {
    const float cosine = to_compute(c[k]), sine = to_compute(s[k]);
    if (p.interleaved) {
      out[2 * k] = in[2 * k] * cosine - in[2 * k + 1] * sine;
      out[2 * k + 1] = in[2 * k] * sine + in[2 * k + 1] * cosine;
    } else {
      out[k] = in[k] * cosine - in[V + k] * sine;
      out[V + k] = in[k] * sine + in[V + k] * cosine;
    }
  }
  Vec<T, V> r, t;
#pragma unroll
  for (int k = 0; k < V; ++k) r[k] = from_compute<T>(out[k]), t[k] = from_compute<T>(out[V + k]);
  store<T, V>(y + low, r);
  store<T, V>(y + high, t);
}

template <typename T, int V>
cudaError_t launch_vectors(const RotaryParams& p, cudaStream_t stream) {
  const int64_t chunks = p.rotary / 2 / V + (p.head_size - p.rotary) / V;
  const int64_t total = p.batch * p.seq * p.heads * chunks;
  const int64_t inner = p.heads_first ? p.seq : p.heads, outer = p.heads_first ? p.heads : p.seq;
  if (total <= kMaxIndex32) {
    const auto div = [](int64_t d) { return FastDiv32(static_cast<uint32_t>(d)); };
    rotary<T, V, FastDiv32>
        <<<blocks_for(total, kThreads), kThreads, 0, stream>>>(p, total, div(chunks), div(inner), div(outer));
  } else {
    const auto div = [](int64_t d) { return Div64(static_cast<uint64_t>(d)); };
    rotary<T, V, Div64>
        <<<blocks_for(total, kThreads), kThreads, 0, stream>>>(p, total, div(chunks), div(inner), div(outer));
  }
  return cudaGetLastError();
}

template <typename T>
cudaError_t launch(const RotaryParams& p, cudaStream_t stream) {
  constexpr int V = kVec16<T>;
  uintptr_t addresses = 0;
  for (const void* a : {p.x, p.cos, p.sin, static_cast<const void*>(p.y)}) addresses |= reinterpret_cast<uintptr_t>(a);
  const bool whole = p.rotary / 2 % V == 0 && (p.head_size - p.rotary) % V == 0;
  return whole && addresses % 16 == 0 ? launch_vectors<T, V>(p, stream) : launch_vectors<T, 1>(p, stream);
}

}  // namespace

cudaError_t launch_rotary(const RotaryParams& p, cudaStream_t stream) {
  if (p.batch * p.seq * p.heads * p.head_size == 0) return cudaSuccess;
  switch (p.dtype) {
    case DType::kF32:
      return launch<float>(p, stream);
    case DType::kF16:
      return launch<__half>(p, stream);
    case DType::kBF16:
      return launch<__nv_bfloat16>(p, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace cuvil
