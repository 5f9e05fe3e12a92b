#include "device/by_type.cuh"
#include "device/index.cuh"
#include "device/launch.cuh"
#include "device/row.cuh"
#include "kernels/layer_norm.cuh"

namespace cuvil {
namespace {

using namespace device;

// LayerNormParams with its types, as the kernels take it.
template <typename T>
struct Args {
  const T *x, *scale, *bias, *skip, *skip_bias;
  T *y, *sum;
  float *mean, *inv_std;
  int64_t rows, n, skip_rows, scale_size, bias_size;
  Compute<T> epsilon;
  bool rms;

  explicit Args(const LayerNormParams& p)
      : x(static_cast<const T*>(p.x)),
        scale(static_cast<const T*>(p.scale)),
        bias(static_cast<const T*>(p.bias)),
        skip(static_cast<const T*>(p.skip)),
        skip_bias(static_cast<const T*>(p.skip_bias)),
        y(static_cast<T*>(p.y)),
        sum(static_cast<T*>(p.sum)),
        mean(p.mean),
        inv_std(p.inv_std),
        rows(p.rows),
        n(p.n),
        skip_rows(p.skip_rows),
        scale_size(p.scale_size),
        bias_size(p.bias_size),
        epsilon(p.epsilon),
        rms(p.rms) {}

  __device__ __forceinline__ void write_statistics(int64_t row, Compute<T> row_mean, Compute<T> row_inv_std) const {
    if (mean) mean[row] = static_cast<float>(row_mean);
    if (inv_std) inv_std[row] = static_cast<float>(row_inv_std);
  }
};

template <typename T, int V>
__device__ __forceinline__ void add_to(Compute<T>* v, const T* p) {
  const Vec<T, V> a = load<T, V>(p);
#pragma unroll
  for (int j = 0; j < V; ++j) v[j] += to_compute(a[j]);
}

template <typename L>
__global__ void __launch_bounds__(L::kBlock) norm_rows(const Args<typename L::Element> a) {
  let_successor_start();
  using T = typename L::Element;
  using C = Compute<T>;
  constexpr int V = L::V, kVecs = L::Ept / V;
  // Where registers allow, scale and bias are on their way before the reductions wait.
  constexpr bool kPreload = L::Ept <= 16 && L::Threads < 1024;
  __shared__ C scratch[32];
  const int64_t row = L::row();
  const bool live = row < a.rows;
  const int n = live ? static_cast<int>(a.n) : 0;  // elements of this row

  C v[L::Ept];
  L::read(a.x + row * a.n, n, C(0), v);
  Vec<T, V> scale[kPreload ? kVecs : 1], bias[kPreload ? kVecs : 1];
  if constexpr (kPreload) {
#pragma unroll
    for (int k = 0; k < kVecs; ++k) {
      const int i = L::start(k);
      if (i >= n) continue;
      scale[k] = load<T, V>(a.scale + i);
      if (a.bias) bias[k] = load<T, V>(a.bias + i);
    }
  }
  if (a.skip) {
    const T* skip = a.skip + (a.skip_rows == a.rows ? row : row % a.skip_rows) * a.n;
#pragma unroll
    for (int k = 0; k < kVecs; ++k) {
      const int i = L::start(k);
      if (i < n) add_to<T, V>(v + k * V, skip + i);
    }
  }
  if (a.skip_bias) {
#pragma unroll
    for (int k = 0; k < kVecs; ++k) {
      const int i = L::start(k);
      if (i < n) add_to<T, V>(v + k * V, a.skip_bias + i);
    }
  }
  if (a.sum) L::write(a.sum + row * a.n, n, v);

  C mean = 0;
  if (!a.rms) {
    C total = 0;
#pragma unroll
    for (int i = 0; i < L::Ept; ++i) total += v[i];
    mean = L::reduce(total, Sum(), C(0), scratch) / C(a.n);
  }
  C squares = 0;
#pragma unroll
  for (int k = 0; k < kVecs; ++k) {
    if (L::start(k) >= n) continue;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const C d = v[k * V + j] - mean;
      squares += d * d;
    }
  }
  const C inv_std = C(1) / sqrt(L::reduce(squares, Sum(), C(0), scratch) / C(a.n) + a.epsilon);

#pragma unroll
  for (int k = 0; k < kVecs; ++k) {
    const int i = L::start(k);
    if (i >= n) continue;
    const Vec<T, V> g = kPreload ? scale[kPreload ? k : 0] : load<T, V>(a.scale + i);
#pragma unroll
    for (int j = 0; j < V; ++j) v[k * V + j] = (v[k * V + j] - mean) * inv_std * to_compute(g[j]);
    if (a.bias) {
      const Vec<T, V> b = kPreload ? bias[kPreload ? k : 0] : load<T, V>(a.bias + i);
#pragma unroll
      for (int j = 0; j < V; ++j) v[k * V + j] += to_compute(b[j]);
    }
  }
  L::write(a.y + row * a.n, n, v);
  if (live && threadIdx.x % L::Threads == 0) a.write_statistics(row, mean, inv_std);
}

// Rows too long for the registers of a block, and scales shorter than the row: the row is read three times.
// x, and with it a `sum` or `y` in the same place, is written in the last pass only.
template <typename T, int V>
__global__ void __launch_bounds__(1024) norm_long_rows(const Args<T> a) {
  using C = Compute<T>;
  __shared__ C scratch[32];
  const int64_t row = blockIdx.x;
  const T* x = a.x + row * a.n;
  const T* skip = a.skip ? a.skip + row % a.skip_rows * a.n : nullptr;
  // Calls f(i, s[i .. i + V)) for this thread's part of the row.
  const auto for_each = [&](const auto& f) {
    for (int64_t i = int64_t{threadIdx.x} * V; i < a.n; i += int64_t{blockDim.x} * V) {
      C s[V] = {};
      add_to<T, V>(s, x + i);
      if (skip) add_to<T, V>(s, skip + i);
      if (a.skip_bias) add_to<T, V>(s, a.skip_bias + i);
      f(i, s);
    }
  };
  C mean = 0;
  if (!a.rms) {
    C total = 0;
    for_each([&](int64_t, const C(&s)[V]) {
#pragma unroll
      for (int j = 0; j < V; ++j) total += s[j];
    });
    mean = block_reduce(total, Sum(), C(0), scratch) / C(a.n);
  }
  C squares = 0;
  for_each([&](int64_t, const C(&s)[V]) {
#pragma unroll
    for (int j = 0; j < V; ++j) squares += (s[j] - mean) * (s[j] - mean);
  });
  const C inv_std = C(1) / sqrt(block_reduce(squares, Sum(), C(0), scratch) / C(a.n) + a.epsilon);
  for_each([&](int64_t i, const C(&s)[V]) {
    const Vec<T, V> scale = load<T, V>(a.scale + (V > 1 ? i : i % a.scale_size));
    Vec<T, V> bias, sum, y;
    if (a.bias) bias = load<T, V>(a.bias + (V > 1 ? i : i % a.bias_size));
#pragma unroll
    for (int j = 0; j < V; ++j) {
      sum[j] = from_compute<T>(s[j]);
      const C scaled = (s[j] - mean) * inv_std * to_compute(scale[j]);
      y[j] = from_compute<T>(a.bias ? scaled + to_compute(bias[j]) : scaled);
    }
    if (a.sum) store<T, V>(a.sum + row * a.n + i, sum);
    store<T, V>(a.y + row * a.n + i, y);
  });
  if (threadIdx.x == 0) a.write_statistics(row, mean, inv_std);
}

template <typename T, int V>
void launch_vectors(const Args<T>& a, bool whole, cudaStream_t stream) {
  const auto in_registers = [&]<typename L>() {
    norm_rows<L><<<blocks_for(a.rows, L::kRows), L::kBlock, 0, stream>>>(a);
  };
  if (!whole || !with_row_layout<T, V>(a.rows, a.n, in_registers)) {
    norm_long_rows<T, V><<<static_cast<unsigned>(a.rows), 1024, 0, stream>>>(a);
  }
}

template <typename T>
cudaError_t launch(const LayerNormParams& p, cudaStream_t stream) {
  const Args<T> a(p);
  const bool whole = a.scale_size == a.n && (!a.bias || a.bias_size == a.n);
  if (whole && rows_are_vectors<T>(p.n, p.x, p.scale, p.bias, p.skip, p.skip_bias, p.y, p.sum)) {
    launch_vectors<T, kVec16<T>>(a, true, stream);
  } else {
    launch_vectors<T, 1>(a, whole, stream);
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_layer_norm(const LayerNormParams& p, cudaStream_t stream) {
  if (p.rows * p.n == 0) return cudaSuccess;
  return device::by_float_type(p.dtype, [&]<typename T>() { return launch<T>(p, stream); });
}

}  // namespace cuvil
