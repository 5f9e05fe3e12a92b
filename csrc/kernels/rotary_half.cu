#include <type_traits>

#include "device/by_type.cuh"
#include "device/vec.cuh"
#include "kernels/rotary_half.cuh"

namespace cuvil {
namespace {

using namespace device;

constexpr int kThreads = 256;

// V neighbouring elements, in accesses of at most 16 bytes. Without kAligned one by one.
template <bool kAligned, typename T, int V>
__device__ __forceinline__ void read(const T* p, Compute<T> (&v)[V]) {
  constexpr int kPart = !kAligned ? 1 : V < kVec16<T> ? V : kVec16<T>;
#pragma unroll
  for (int i = 0; i < V; i += kPart) {
    const Vec<T, kPart> part = load<T, kPart>(p + i);
#pragma unroll
    for (int j = 0; j < kPart; ++j) v[i + j] = to_compute(part[j]);
  }
}

template <bool kAligned, typename T, int V>
__device__ __forceinline__ void write(T* p, const Compute<T> (&v)[V]) {
  constexpr int kPart = !kAligned ? 1 : V < kVec16<T> ? V : kVec16<T>;
#pragma unroll
  for (int i = 0; i < V; i += kPart) {
    Vec<T, kPart> part;
#pragma unroll
    for (int j = 0; j < kPart; ++j) part[j] = from_compute<T>(v[i + j]);
    store<T, kPart>(p + i, part);
  }
}

// A block does one position, in units of V elements (V pairs where a unit is rotated and pairs are apart): the rotated
// parts of all rotated heads, then their copied parts, then the copied heads. In place only the first kind exists. Each
// unit reads all it writes before it writes, so that y may be x.
template <typename T, typename F, int V, bool kAligned, bool kInterleaved>
__global__ void __launch_bounds__(kThreads) rotary_half(const RotaryHalfParams p, int units) {
  using C = Compute<T>;
  const int half = p.rotary_dim / 2;
  const int turns = (kInterleaved ? p.rotary_dim : half) / V;  // units that rotate a head
  const int beyond = (p.head_size - p.rotary_dim) / V;         // units that copy the rest of it
  const int rotated = p.rotated_heads * turns, copied = rotated + p.rotated_heads * beyond;
  const int64_t row = blockIdx.x, offset = row * p.heads * p.head_size;
  const int64_t factors = row / p.s * p.batch_stride + row % p.s * p.row_stride;
  for (int unit = threadIdx.x; unit < units; unit += blockDim.x) {
    const T* x = static_cast<const T*>(p.x) + offset;
    T* y = static_cast<T*>(p.y) + offset;
    if (unit >= rotated) {
      int64_t at = int64_t{p.rotated_heads} * p.head_size + int64_t{unit - copied} * V;
      if (unit < copied) {
        const int head = (unit - rotated) / beyond;
        at = int64_t{head} * p.head_size + p.rotary_dim + (unit - rotated - head * beyond) * V;
      }
      C v[V];
      read<kAligned>(x + at, v);
      write<kAligned>(y + at, v);
      continue;
    }
    const int head = unit / turns, first = (unit - head * turns) * V;
    x += int64_t{head} * p.head_size + first;
    y += int64_t{head} * p.head_size + first;
    const F* cos = static_cast<const F*>(p.cos) + factors;
    const F* sin = static_cast<const F*>(p.sin) + factors;
    if constexpr (kInterleaved) {
      C v[V], out[V];
      Compute<F> c[V], s[V];
      read<kAligned>(x, v);
      if (p.per_pair) {
        Compute<F> pair_c[V / 2], pair_s[V / 2];
        read<kAligned>(cos + first / 2, pair_c);
        read<kAligned>(sin + first / 2, pair_s);
#pragma unroll
        for (int j = 0; j < V; ++j) c[j] = pair_c[j / 2], s[j] = pair_s[j / 2];
      } else {
        read<kAligned>(cos + first, c);
        read<kAligned>(sin + first, s);
      }
#pragma unroll
      for (int j = 0; j < V; j += 2) {
        out[j] = v[j] * C(c[j]) - v[j + 1] * C(s[j]);
        out[j + 1] = v[j + 1] * C(c[j + 1]) + v[j] * C(s[j + 1]);
      }
      write<kAligned>(y, out);
    } else {
      C a[V], b[V], out_a[V], out_b[V];
      Compute<F> ca[V], sa[V], cb[V], sb[V];
      read<kAligned>(x, a);
      read<kAligned>(x + half, b);
      read<kAligned>(cos + first, ca);
      read<kAligned>(sin + first, sa);
      const int second = p.per_pair ? first : first + half;
      read<kAligned>(cos + second, cb);
      read<kAligned>(sin + second, sb);
#pragma unroll
      for (int j = 0; j < V; ++j) {
        out_a[j] = a[j] * C(ca[j]) - b[j] * C(sa[j]);
        out_b[j] = b[j] * C(cb[j]) + a[j] * C(sb[j]);
      }
      write<kAligned>(y, out_a);
      write<kAligned>(y + half, out_b);
    }
  }
}

template <typename T, typename F, int V, bool kAligned, bool kInterleaved>
cudaError_t launch_vector(const RotaryHalfParams& p, cudaStream_t stream) {
  int64_t units = int64_t{p.rotated_heads} * ((kInterleaved ? p.rotary_dim : p.rotary_dim / 2) / V);
  if (p.x != p.y) {
    units += int64_t{p.rotated_heads} * ((p.head_size - p.rotary_dim) / V);
    units += int64_t{p.heads - p.rotated_heads} * (p.head_size / V);
  }
  if (p.rows > INT32_MAX || units > INT32_MAX) return cudaErrorInvalidValue;
  const int64_t threads = (units + 31) / 32 * 32;
  rotary_half<T, F, V, kAligned, kInterleaved>
      <<<static_cast<unsigned>(p.rows), static_cast<unsigned>(threads < kThreads ? threads : kThreads), 0, stream>>>(
          p, static_cast<int>(units));
  return cudaGetLastError();
}

template <typename T, typename F>
cudaError_t launch_typed(const RotaryHalfParams& p, cudaStream_t stream) {
  constexpr int kWide = kVec16<T>;
  const auto aligned = [](const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; };
  const auto whole = [](int64_t n) { return n % kWide == 0; };
  // A unit of interleaved pairs with one factor each reads half as many factors: their access is V / 2 elements.
  const int shared = p.interleaved && p.per_pair ? 2 : 1;
  const bool fits = whole(p.head_size) && whole(p.interleaved ? p.rotary_dim : p.rotary_dim / 2) &&
                    whole(p.batch_stride * shared) && whole(p.row_stride * shared) && aligned(p.x) && aligned(p.y) &&
                    aligned(p.cos) && aligned(p.sin);
  if (p.interleaved) {
    return fits ? launch_vector<T, F, kWide, true, true>(p, stream) : launch_vector<T, F, 2, false, true>(p, stream);
  }
  return fits ? launch_vector<T, F, kWide, true, false>(p, stream) : launch_vector<T, F, 1, false, false>(p, stream);
}

}  // namespace

cudaError_t launch_rotary_half(const RotaryHalfParams& p, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  if (p.interleaved && p.head_size % 2 != 0) return cudaErrorInvalidValue;
  return by_float_type(p.dtype, [&]<typename T>() {
    if (p.factor_dtype == p.dtype) return launch_typed<T, T>(p, stream);
    return p.factor_dtype == DType::kF32 ? launch_typed<T, float>(p, stream) : cudaErrorInvalidValue;
  });
}

}  // namespace cuvil
