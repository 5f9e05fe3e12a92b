#include "device/by_type.cuh"
#include "device/index.cuh"
#include "device/row.cuh"
#include "kernels/lp_norm.cuh"

namespace cuvil {
namespace {

using namespace device;

template <typename C>
struct Norm {
  bool euclidean;
  __device__ __forceinline__ C take(C v) const { return euclidean ? v * v : (v < C(0) ? -v : v); }
  __device__ __forceinline__ C finish(C sum) const { return euclidean ? sqrt(sum) : sum; }
  static __device__ __forceinline__ C divide(C v, C norm) { return norm == C(0) ? C(0) : v / norm; }
};

template <typename L>
__global__ void __launch_bounds__(L::kBlock) lp_norm_rows(const typename L::Element* x, typename L::Element* y,
                                                          int64_t rows, int n, Norm<Compute<typename L::Element>> how) {
  using C = Compute<typename L::Element>;
  __shared__ C scratch[32];
  const int64_t row = L::row();
  const int live = row < rows ? n : 0;  // elements of this row
  C v[L::Ept];
  L::read(x + row * n, live, C(0), v);
  C sum = 0;
#pragma unroll
  for (int i = 0; i < L::Ept; ++i) sum += how.take(v[i]);
  const C norm = how.finish(L::reduce(sum, Sum(), C(0), scratch));
#pragma unroll
  for (int i = 0; i < L::Ept; ++i) v[i] = how.divide(v[i], norm);
  L::write(y + row * n, live, v);
}

// Rows too long for the registers of a block: read twice.
template <typename T, int V>
__global__ void __launch_bounds__(1024) lp_norm_long_rows(const T* x, T* y, int64_t n, Norm<Compute<T>> how) {
  using C = Compute<T>;
  __shared__ C scratch[32];
  const T* in = x + blockIdx.x * n;
  T* out = y + blockIdx.x * n;
  C sum = 0;
  for (int64_t i = int64_t{threadIdx.x} * V; i < n; i += 1024 * V) {
    const Vec<T, V> a = load<T, V>(in + i);
#pragma unroll
    for (int j = 0; j < V; ++j) sum += how.take(to_compute(a[j]));
  }
  const C norm = how.finish(block_reduce(sum, Sum(), C(0), scratch));
  for (int64_t i = int64_t{threadIdx.x} * V; i < n; i += 1024 * V) {
    Vec<T, V> a = load<T, V>(in + i);
#pragma unroll
    for (int j = 0; j < V; ++j) a[j] = from_compute<T>(how.divide(to_compute(a[j]), norm));
    store<T, V>(out + i, a);
  }
}

// An axis that is not the innermost: 32 neighbouring columns a block, Y threads a column, which read it twice; the
// second time it comes from the caches.
template <typename T, int Y>
__global__ void __launch_bounds__(32 * Y)
    lp_norm_columns(const T* x, T* y, int64_t columns, int64_t n, int64_t inner, Norm<Compute<T>> how) {
  using C = Compute<T>;
  __shared__ C shared[Y][32];
  const int64_t column = int64_t{blockIdx.x} * 32 + threadIdx.x;
  const bool live = column < columns;
  const int64_t base = live ? column / inner * n * inner + column % inner : 0;
  C sum = 0;
  if (live)
    for (int64_t i = threadIdx.y; i < n; i += Y) sum += how.take(to_compute(x[base + i * inner]));
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  sum = shared[0][threadIdx.x];
  for (int k = 1; k < Y; ++k) sum += shared[k][threadIdx.x];
  const C norm = how.finish(sum);
  if (!live) return;
  for (int64_t i = threadIdx.y; i < n; i += Y) {
    const int64_t at = base + i * inner;
    y[at] = from_compute<T>(how.divide(to_compute(x[at]), norm));
  }
}

template <typename T, int V>
cudaError_t launch_rows(const LpNormParams& p, cudaStream_t stream) {
  const T* x = static_cast<const T*>(p.x);
  T* y = static_cast<T*>(p.y);
  const Norm<Compute<T>> how{p.euclidean};
  const auto in_registers = [&]<typename L>() {
    lp_norm_rows<L><<<blocks_for(p.outer, L::kRows), L::kBlock, 0, stream>>>(x, y, p.outer, static_cast<int>(p.n), how);
  };
  if (!with_row_layout<T, V>(p.outer, p.n, in_registers))
    lp_norm_long_rows<T, V><<<static_cast<unsigned>(p.outer), 1024, 0, stream>>>(x, y, p.n, how);
  return cudaGetLastError();
}

template <typename T>
cudaError_t launch(const LpNormParams& p, cudaStream_t stream) {
  if (p.inner == 1)
    return rows_are_vectors<T>(p.n, p.x, p.y) ? launch_rows<T, kVec16<T>>(p, stream) : launch_rows<T, 1>(p, stream);
  const int64_t columns = p.outer * p.inner;
  const unsigned blocks = blocks_for(columns, 32);
  const T* x = static_cast<const T*>(p.x);
  T* y = static_cast<T*>(p.y);
  const Norm<Compute<T>> how{p.euclidean};
  if (p.n >= 64)
    lp_norm_columns<T, 32><<<blocks, dim3(32, 32), 0, stream>>>(x, y, columns, p.n, p.inner, how);
  else
    lp_norm_columns<T, 4><<<blocks, dim3(32, 4), 0, stream>>>(x, y, columns, p.n, p.inner, how);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_lp_norm(const LpNormParams& p, cudaStream_t stream) {
  if (p.outer * p.n * p.inner == 0) return cudaSuccess;
  return by_float_type(p.dtype, [&]<typename T>() { return launch<T>(p, stream); });
}

}  // namespace cuvil
