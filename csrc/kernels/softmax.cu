#include <cmath>

#include "device/by_type.cuh"
#include "device/index.cuh"
#include "device/row.cuh"
#include "kernels/softmax.cuh"

namespace cuvil {
namespace {

using namespace device;

template <typename C>
__device__ __forceinline__ C minus_inf() {
  return static_cast<C>(-INFINITY);
}

// fmax drops a NaN; the NaN comes back through the sum, as exp(NaN - max).
struct MaxNumber {
  __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
  __device__ __forceinline__ double operator()(double a, double b) const { return fmax(a, b); }
};

// Running maximum m and sum of exp(x - m) over the values seen.
template <typename C>
struct Online {
  C m = minus_inf<C>();
  C sum = 0;

  __device__ __forceinline__ void add(C x) {
    const C top = MaxNumber()(m, x);
    // -inf adds nothing; without the tests a leading -inf would give exp(-inf + inf) = NaN.
    if (top != m) sum *= exp(m - top);
    if (x != minus_inf<C>()) sum += exp(x - top);
    m = top;
  }
  // The part of the whole row's sum, relative to the row's maximum.
  __device__ __forceinline__ C part(C row_max) const { return m == row_max ? sum : sum * exp(m - row_max); }
};

// exp(x - m) / sum, or its logarithm. An all -inf row has m = -inf, hence NaN here.
template <typename C>
struct Finish {
  C m, scale;
  bool log;
  __device__ __forceinline__ Finish(C row_max, C sum, bool want_log)
      : m(row_max), scale(want_log ? ::log(sum) : C(1) / sum), log(want_log) {}
  __device__ __forceinline__ C operator()(C x) const { return log ? (x - m) - scale : exp(x - m) * scale; }
};

template <typename L>
__global__ void __launch_bounds__(L::kBlock)
    softmax_rows(const typename L::Element* x, typename L::Element* y, int64_t rows, int n, bool log) {
  using C = Compute<typename L::Element>;
  __shared__ C scratch[32];
  const int64_t row = L::row();
  const int live = row < rows ? n : 0;  // elements of this row
  C v[L::Ept];
  L::read(x + row * n, live, minus_inf<C>(), v);
  C m = v[0];
#pragma unroll
  for (int i = 1; i < L::Ept; ++i) m = MaxNumber()(m, v[i]);
  m = L::reduce(m, MaxNumber(), minus_inf<C>(), scratch);
  C sum = 0;
  if (log) {
#pragma unroll
    for (int i = 0; i < L::Ept; ++i) sum += exp(v[i] - m);
  } else {
#pragma unroll
    for (int i = 0; i < L::Ept; ++i) sum += v[i] = exp(v[i] - m);
  }
  sum = L::reduce(sum, Sum(), C(0), scratch);
  const C scale = log ? ::log(sum) : C(1) / sum;
#pragma unroll
  for (int i = 0; i < L::Ept; ++i) v[i] = log ? (v[i] - m) - scale : v[i] * scale;
  L::write(y + row * n, live, v);
}

// Rows too long for the registers of a block: one reading for maximum and sum together, one for the result.
template <typename T, int V>
__global__ void __launch_bounds__(1024) softmax_long_rows(const T* x, T* y, int64_t n, bool log) {
  using C = Compute<T>;
  __shared__ C scratch[32];
  const T* in = x + blockIdx.x * n;
  T* out = y + blockIdx.x * n;
  Online<C> seen;
  for (int64_t i = int64_t{threadIdx.x} * V; i < n; i += 1024 * V) {
    const Vec<T, V> a = load<T, V>(in + i);
#pragma unroll
    for (int j = 0; j < V; ++j) seen.add(to_compute(a[j]));
  }
  const C m = block_reduce(seen.m, MaxNumber(), minus_inf<C>(), scratch);
  const C sum = block_reduce(seen.part(m), Sum(), C(0), scratch);
  const Finish<C> finish(m, sum, log);
  for (int64_t i = int64_t{threadIdx.x} * V; i < n; i += 1024 * V) {
    Vec<T, V> a = load<T, V>(in + i);
#pragma unroll
    for (int j = 0; j < V; ++j) a[j] = from_compute<T>(finish(to_compute(a[j])));
    store<T, V>(out + i, a);
  }
}

// An axis that is not the innermost, in a block of X x Y threads: the columns of V neighbours in `inner` that thread
// (x, y) works on begin at `base`, and the Y threads of one x share them.
template <int V>
struct Columns {
  bool live;
  int64_t base;
  __device__ __forceinline__ Columns(int64_t columns, int64_t n, int64_t inner) {
    const int64_t column = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * V;
    live = column < columns;
    base = live ? column / inner * n * inner + column % inner : 0;
  }
};

// Each of v[0 .. V) combined over the Y threads of a column.
template <int X, int Y, typename C, int V, typename Op>
__device__ __forceinline__ void column_reduce(C (&v)[V], Op op, C (*shared)[V][X]) {
  if constexpr (Y > 1) {
    __syncthreads();  // an earlier call's readers are done
#pragma unroll
    for (int j = 0; j < V; ++j) shared[threadIdx.y][j][threadIdx.x] = v[j];
    __syncthreads();
#pragma unroll
    for (int j = 0; j < V; ++j) {
      v[j] = shared[0][j][threadIdx.x];
#pragma unroll
      for (int k = 1; k < Y; ++k) v[j] = op(v[j], shared[k][j][threadIdx.x]);
    }
  }
}

// n is at most Held * Y: a thread's values stay in its registers.
template <typename T, int X, int Y, int Held, int V>
__global__ void __launch_bounds__(X* Y)
    softmax_short_columns(const T* x, T* y, int64_t columns, int64_t n, int64_t inner, bool log) {
  using C = Compute<T>;
  __shared__ C scratch[Y][V][X];
  const Columns<V> at(columns, n, inner);
  const int live = at.live ? static_cast<int>(n) : 0;
  C v[Held][V], m[V], sum[V] = {};
#pragma unroll
  for (int j = 0; j < V; ++j) m[j] = minus_inf<C>();
#pragma unroll
  for (int k = 0; k < Held; ++k) {
    const int i = threadIdx.y + k * Y;
    if (i >= live) continue;
    const Vec<T, V> a = load<T, V>(x + at.base + i * inner);
#pragma unroll
    for (int j = 0; j < V; ++j) v[k][j] = to_compute(a[j]);
  }
#pragma unroll
  for (int k = 0; k < Held; ++k) {
    if (static_cast<int>(threadIdx.y) + k * Y >= live) continue;
#pragma unroll
    for (int j = 0; j < V; ++j) m[j] = MaxNumber()(m[j], v[k][j]);
  }
  column_reduce<X, Y>(m, MaxNumber(), scratch);
#pragma unroll
  for (int k = 0; k < Held; ++k) {
    if (static_cast<int>(threadIdx.y) + k * Y >= live) continue;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const C e = exp(v[k][j] - m[j]);
      sum[j] += e;
      v[k][j] = log ? v[k][j] - m[j] : e;
    }
  }
  column_reduce<X, Y>(sum, Sum(), scratch);
#pragma unroll
  for (int j = 0; j < V; ++j) sum[j] = log ? ::log(sum[j]) : C(1) / sum[j];
#pragma unroll
  for (int k = 0; k < Held; ++k) {
    const int i = threadIdx.y + k * Y;
    if (i >= live) continue;
    Vec<T, V> a;
#pragma unroll
    for (int j = 0; j < V; ++j) a[j] = from_compute<T>(log ? v[k][j] - sum[j] : v[k][j] * sum[j]);
    store<T, V>(y + at.base + i * inner, a);
  }
}

template <typename T>
__global__ void __launch_bounds__(1024)
    softmax_long_columns(const T* x, T* y, int64_t columns, int64_t n, int64_t inner, bool log) {
  using C = Compute<T>;
  constexpr int Y = 32;
  __shared__ C scratch[Y][1][32];
  const Columns<1> at(columns, n, inner);
  Online<C> seen;
  if (at.live) {
    for (int64_t i = threadIdx.y; i < n; i += Y) seen.add(to_compute(x[at.base + i * inner]));
  }
  C m[1] = {seen.m};
  column_reduce<32, Y>(m, MaxNumber(), scratch);
  C sum[1] = {seen.part(m[0])};
  column_reduce<32, Y>(sum, Sum(), scratch);
  if (!at.live) return;
  const Finish<C> finish(m[0], sum[0], log);
  for (int64_t i = threadIdx.y; i < n; i += Y) {
    y[at.base + i * inner] = from_compute<T>(finish(to_compute(x[at.base + i * inner])));
  }
}

template <typename T, int V>
void launch_rows(const SoftmaxParams& p, cudaStream_t stream) {
  const T* x = static_cast<const T*>(p.x);
  T* y = static_cast<T*>(p.y);
  const auto in_registers = [&]<typename L>() {
    softmax_rows<L>
        <<<blocks_for(p.outer, L::kRows), L::kBlock, 0, stream>>>(x, y, p.outer, static_cast<int>(p.n), p.log);
  };
  if (!with_row_layout<T, V>(p.outer, p.n, in_registers)) {
    softmax_long_rows<T, V><<<static_cast<unsigned>(p.outer), 1024, 0, stream>>>(x, y, p.n, p.log);
  }
}

template <typename T, int V>
void launch_columns(const SoftmaxParams& p, cudaStream_t stream) {
  const T* x = static_cast<const T*>(p.x);
  T* y = static_cast<T*>(p.y);
  const int64_t columns = p.outer * p.inner;
  const auto in_registers = [&]<int X, int Y, int Held>() {
    softmax_short_columns<T, X, Y, Held, V>
        <<<blocks_for(columns, X * V), dim3(X, Y), 0, stream>>>(x, y, columns, p.n, p.inner, p.log);
  };
  if (p.n <= 4) {
    in_registers.template operator()<128, 1, 4>();
  } else if (p.n <= 16) {
    in_registers.template operator()<128, 1, 16>();
  } else if (p.n <= 64) {
    in_registers.template operator()<32, 4, 16>();
  } else if (p.n <= 256) {
    in_registers.template operator()<32, 16, 16>();
  } else {
    softmax_long_columns<T><<<blocks_for(columns, 32), dim3(32, 32), 0, stream>>>(x, y, columns, p.n, p.inner, p.log);
  }
}

template <typename T>
cudaError_t launch(const SoftmaxParams& p, cudaStream_t stream) {
  if (p.inner > 1) {
    // Two 16-bit columns a thread, so that a warp moves 128 bytes.
    constexpr int V = sizeof(T) == 2 ? 2 : 1;
    const bool pairs =
        p.inner % V == 0 && reinterpret_cast<uintptr_t>(p.x) % 4 == 0 && reinterpret_cast<uintptr_t>(p.y) % 4 == 0;
    if (pairs) {
      launch_columns<T, V>(p, stream);
    } else {
      launch_columns<T, 1>(p, stream);
    }
  } else if (rows_are_vectors<T>(p.n, p.x, p.y)) {
    launch_rows<T, kVec16<T>>(p, stream);
  } else {
    launch_rows<T, 1>(p, stream);
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_softmax(const SoftmaxParams& p, cudaStream_t stream) {
  if (p.outer * p.n * p.inner == 0) return cudaSuccess;
  return device::by_float_type(p.dtype, [&]<typename T>() { return launch<T>(p, stream); });
}

}  // namespace cuvil
