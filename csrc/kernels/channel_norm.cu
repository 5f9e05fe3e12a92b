#include "device/by_type.cuh"
#include "device/index.cuh"
#include "device/row.cuh"
#include "kernels/channel_norm.cuh"

namespace cuvil {
namespace {

using namespace device;

// ChannelNormParams with its types; n is the length of a row, that is of one group.
template <typename T>
struct Args {
  const T *x, *scale, *bias;
  T* y;
  int64_t rows, groups, channels, inner, n;
  bool by_group;
  Compute<T> epsilon;

  explicit Args(const ChannelNormParams& p)
      : x(static_cast<const T*>(p.x)),
        scale(static_cast<const T*>(p.scale)),
        bias(static_cast<const T*>(p.bias)),
        y(static_cast<T*>(p.y)),
        rows(p.batch * p.groups),
        groups(p.groups),
        channels(p.channels),
        inner(p.inner),
        n(p.channels * p.inner),
        by_group(p.affine_by_group),
        epsilon(p.epsilon) {}

  // Where element i of a row finds its scale and bias.
  __device__ __forceinline__ int64_t affine(int64_t row, int64_t i) const {
    const int64_t group = row % groups;
    return by_group ? group : group * channels + (channels == 1 ? 0 : i / inner);
  }
};

// V divides inner, so that a vector lies in one channel.
template <typename T, int V>
__device__ __forceinline__ void scale_and_shift(const Args<T>& a, int64_t row, int64_t i, Compute<T> mean,
                                                Compute<T> inv_std, Compute<T>* v) {
  const int64_t k = a.affine(row, i);
  const Compute<T> gain = inv_std * to_compute(a.scale[k]), shift = to_compute(a.bias[k]);
#pragma unroll
  for (int j = 0; j < V; ++j) v[j] = (v[j] - mean) * gain + shift;
}

template <typename L>
__global__ void __launch_bounds__(L::kBlock) channel_norm_rows(const Args<typename L::Element> a) {
  using T = typename L::Element;
  using C = Compute<T>;
  __shared__ C scratch[32];
  const int64_t row = L::row();
  const int n = row < a.rows ? static_cast<int>(a.n) : 0;  // elements of this row
  C v[L::Ept];
  L::read(a.x + row * a.n, n, C(0), v);
  C total = 0;
#pragma unroll
  for (int i = 0; i < L::Ept; ++i) total += v[i];
  const C mean = L::reduce(total, Sum(), C(0), scratch) / C(a.n);
  C squares = 0;
#pragma unroll
  for (int k = 0; k < L::Ept / L::V; ++k) {
    if (L::start(k) >= n) continue;
#pragma unroll
    for (int j = 0; j < L::V; ++j) squares += (v[k * L::V + j] - mean) * (v[k * L::V + j] - mean);
  }
  const C inv_std = C(1) / sqrt(L::reduce(squares, Sum(), C(0), scratch) / C(a.n) + a.epsilon);
#pragma unroll
  for (int k = 0; k < L::Ept / L::V; ++k) {
    const int i = L::start(k);
    if (i < n) scale_and_shift<T, L::V>(a, row, i, mean, inv_std, v + k * L::V);
  }
  L::write(a.y + row * a.n, n, v);
}

// Groups too large for the registers of a block: read three times.
template <typename T, int V>
__global__ void __launch_bounds__(1024) channel_norm_long_rows(const Args<T> a) {
  using C = Compute<T>;
  __shared__ C scratch[32];
  const int64_t row = blockIdx.x;
  const auto for_each = [&](const auto& f) {
    for (int64_t i = int64_t{threadIdx.x} * V; i < a.n; i += int64_t{blockDim.x} * V) {
      const Vec<T, V> in = load<T, V>(a.x + row * a.n + i);
      C v[V];
#pragma unroll
      for (int j = 0; j < V; ++j) v[j] = to_compute(in[j]);
      f(i, v);
    }
  };
  C total = 0;
  for_each([&](int64_t, const C(&v)[V]) {
#pragma unroll
    for (int j = 0; j < V; ++j) total += v[j];
  });
  const C mean = block_reduce(total, Sum(), C(0), scratch) / C(a.n);
  C squares = 0;
  for_each([&](int64_t, const C(&v)[V]) {
#pragma unroll
    for (int j = 0; j < V; ++j) squares += (v[j] - mean) * (v[j] - mean);
  });
  const C inv_std = C(1) / sqrt(block_reduce(squares, Sum(), C(0), scratch) / C(a.n) + a.epsilon);
  for_each([&](int64_t i, C(&v)[V]) {
    scale_and_shift<T, V>(a, row, i, mean, inv_std, v);
    Vec<T, V> out;
#pragma unroll
    for (int j = 0; j < V; ++j) out[j] = from_compute<T>(v[j]);
    store<T, V>(a.y + row * a.n + i, out);
  });
}

template <typename T, int V>
void launch_vectors(const Args<T>& a, cudaStream_t stream) {
  const auto in_registers = [&]<typename L>() {
    channel_norm_rows<L><<<blocks_for(a.rows, L::kRows), L::kBlock, 0, stream>>>(a);
  };
  if (!with_row_layout<T, V>(a.rows, a.n, in_registers)) {
    channel_norm_long_rows<T, V><<<static_cast<unsigned>(a.rows), 1024, 0, stream>>>(a);
  }
}

template <typename T>
cudaError_t launch(const ChannelNormParams& p, cudaStream_t stream) {
  const Args<T> a(p);
  if (rows_are_vectors<T>(p.inner, p.x, p.y)) {
    launch_vectors<T, kVec16<T>>(a, stream);
  } else {
    launch_vectors<T, 1>(a, stream);
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_channel_norm(const ChannelNormParams& p, cudaStream_t stream) {
  if (p.batch * p.groups * p.channels * p.inner == 0) return cudaSuccess;
  return device::by_float_type(p.dtype, [&]<typename T>() { return launch<T>(p, stream); });
}

}  // namespace cuvil
