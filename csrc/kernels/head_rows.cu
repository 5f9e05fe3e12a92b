#include "device/by_type.cuh"
#include "device/index.cuh"
#include "device/vec.cuh"
#include "kernels/head_rows.cuh"

namespace cuvil {
namespace {

using namespace device;

constexpr int kThreads = 256;

template <typename T, int V>
__device__ __forceinline__ void read(const T* p, const T* bias, Compute<T> (&v)[V]) {
  const Vec<T, V> in = load<T, V>(p);
#pragma unroll
  for (int j = 0; j < V; ++j) v[j] = to_compute(in[j]);
  if (bias == nullptr) return;
  const Vec<T, V> add = load<T, V>(bias);
#pragma unroll
  for (int j = 0; j < V; ++j) v[j] = to_compute(from_compute<T>(v[j] + to_compute(add[j])));
}

template <typename T, int V>
__device__ __forceinline__ void write(T* p, const Compute<T> (&v)[V]) {
  Vec<T, V> out;
#pragma unroll
  for (int j = 0; j < V; ++j) out[j] = from_compute<T>(v[j]);
  store<T, V>(p, out);
}

// A block does one token, in units of V elements, or of V pairs where they are rotated.
template <typename T, int V, bool Interleaved>
__global__ void __launch_bounds__(kThreads) head_rows(const HeadRowsParams p) {
  using C = Compute<T>;
  const int64_t token = blockIdx.x, batch = token / p.rows;
  const int row = static_cast<int>(token - batch * p.rows);
  const int64_t first = p.lengths ? int64_t{p.lengths[batch]} + 1 - p.rows : p.past;
  const bool fits = first >= 0 && first + row < p.capacity;
  int64_t position = first + row;
  if (p.positions) position = p.one_position ? p.positions[0] + row : p.positions[token];
  const bool known = position >= 0 && position < p.cache_rows;
  const int half = p.rotary / 2;

#pragma unroll
  for (int i = 0; i < 3; ++i) {
    if (i >= p.count) return;
    const HeadRows& part = p.parts[i];
    if ((part.append && !fits) || (part.rotate && !known)) {
      if (threadIdx.x == 0 && p.out_of_range) *p.out_of_range = 1;
      if (part.append && !fits) continue;
    }
    const bool rotate = part.rotate && known;
    const int turns = rotate ? half / V : 0, turned = rotate ? p.rotary : 0;
    const int units = turns + (part.size - turned) / V;
    const T* x = static_cast<const T*>(part.x) + batch * part.x_strides.batch + row * part.x_strides.row;
    T* y =
        static_cast<T*>(part.y) + batch * part.y_strides.batch + (row + (part.append ? first : 0)) * part.y_strides.row;
    for (int u = threadIdx.x; u < part.heads * units; u += blockDim.x) {
      const int head = u / units, unit = u - head * units;
      const T* from = x + head * part.x_strides.head;
      T* to = y + head * part.y_strides.head;
      const T* bias = part.bias ? static_cast<const T*>(part.bias) + head * part.size : nullptr;
      if (unit >= turns) {
        const int at = turned + (unit - turns) * V;
        C v[V];
        read<T, V>(from + at, bias ? bias + at : nullptr, v);
        write<T, V>(to + at, v);
        continue;
      }
      C cos[V], sin[V];
      read<T, V>(static_cast<const T*>(p.cos) + position * half + unit * V, nullptr, cos);
      read<T, V>(static_cast<const T*>(p.sin) + position * half + unit * V, nullptr, sin);
      const int a_at = Interleaved ? unit * 2 * V : unit * V, b_at = a_at + (Interleaved ? V : half);
      C pair[2][V], out[2][V];
      read<T, V>(from + a_at, bias ? bias + a_at : nullptr, pair[0]);
      read<T, V>(from + b_at, bias ? bias + b_at : nullptr, pair[1]);
#pragma unroll
      for (int j = 0; j < V; ++j) {
        // Where pair j's elements are in the 2 V that were read.
        const int a = Interleaved ? 2 * j : j, b = Interleaved ? 2 * j + 1 : V + j;
        const C left = pair[a / V][a % V], right = pair[b / V][b % V];
        out[a / V][a % V] = left * cos[j] - right * sin[j];
        out[b / V][b % V] = left * sin[j] + right * cos[j];
      }
      write<T, V>(to + a_at, out[0]);
      write<T, V>(to + b_at, out[1]);
    }
  }
}

template <typename T, int V>
cudaError_t launch_vector(const HeadRowsParams& p, cudaStream_t stream) {
  const int64_t tokens = int64_t{p.batch} * p.rows;
  if (tokens > INT32_MAX) return cudaErrorInvalidValue;
  const auto blocks = static_cast<unsigned>(tokens);
  if (p.interleaved) {
    head_rows<T, V, true><<<blocks, kThreads, 0, stream>>>(p);
  } else {
    head_rows<T, V, false><<<blocks, kThreads, 0, stream>>>(p);
  }
  return cudaGetLastError();
}

// Whether all is read and written in whole vectors.
template <typename T>
bool is_vectors(const HeadRowsParams& p) {
  constexpr int V = kVec16<T>;
  const auto aligned = [](const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; };
  const auto whole = [](const HeadStrides& s) { return s.batch % V == 0 && s.row % V == 0 && s.head % V == 0; };
  for (int i = 0; i < p.count; ++i) {
    const HeadRows& part = p.parts[i];
    if (!aligned(part.x) || !aligned(part.y) || !aligned(part.bias) || !whole(part.x_strides) ||
        !whole(part.y_strides) || part.size % V != 0 || (part.rotate && p.rotary % (2 * V) != 0)) {
      return false;
    }
  }
  return aligned(p.cos) && aligned(p.sin);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) cache_copy(const CacheCopyParams p, int64_t row, int64_t total) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= total) return;
  const int64_t place = quotient(i, row), column = i - place * row;
  const int64_t plane = quotient(place, p.capacity), step = place - plane * p.capacity;  // plane: batch entry and head
  int64_t first = p.empty ? 0 : p.past;
  if (p.lengths && !p.empty) {
    first = min(max(int64_t{p.lengths[quotient(plane, p.heads)]} + 1 - p.rows, int64_t{0}), p.past);
  }
  T* y = static_cast<T*>(p.y);
  if (step < first) {
    y[i] = static_cast<const T*>(p.x)[(plane * p.past + step) * row + column];
  } else if (step >= first + p.rows) {
    y[i] = T{};
  }
}

}  // namespace

cudaError_t launch_head_rows(const HeadRowsParams& p, cudaStream_t stream) {
  if (p.count == 0 || int64_t{p.batch} * p.rows == 0) return cudaSuccess;
  if (p.dtype == DType::kF64) return cudaErrorInvalidValue;
  return by_float_type(p.dtype, [&]<typename T>() {
    if constexpr (sizeof(T) <= 4) {
      return is_vectors<T>(p) ? launch_vector<T, kVec16<T>>(p, stream) : launch_vector<T, 1>(p, stream);
    } else {
      return cudaErrorInvalidValue;
    }
  });
}

cudaError_t launch_cache_copy(const CacheCopyParams& p, cudaStream_t stream) {
  if (p.batch * p.heads * p.capacity * p.row_bytes == 0) return cudaSuccess;
  const uintptr_t places =
      reinterpret_cast<uintptr_t>(p.x) | reinterpret_cast<uintptr_t>(p.y) | static_cast<uintptr_t>(p.row_bytes);
  const int bytes = places % 16 == 0 ? 16 : places % 8 == 0 ? 8 : places % 4 == 0 ? 4 : places % 2 == 0 ? 2 : 1;
  return by_element_size<16>(bytes, [&]<typename T>() {
    const int64_t row = p.row_bytes / static_cast<int64_t>(sizeof(T)), total = p.batch * p.heads * p.capacity * row;
    if (total > int64_t{kThreads} * INT32_MAX) return cudaErrorInvalidValue;
    cache_copy<T><<<blocks_for(total, kThreads), kThreads, 0, stream>>>(p, row, total);
    return cudaGetLastError();
  });
}

}  // namespace cuvil
