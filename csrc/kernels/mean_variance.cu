#include "device/by_type.cuh"
#include "device/index.cuh"
#include "device/row.cuh"
#include "kernels/mean_variance.cuh"

namespace cuvil {
namespace {

using namespace device;

// Rows of one segment, held in registers.
template <typename L>
__global__ void __launch_bounds__(L::kBlock)
    mean_variance_rows(const typename L::Element* x, typename L::Element* y, int64_t rows, int width,
                       Compute<typename L::Element> epsilon) {
  using C = Compute<typename L::Element>;
  __shared__ C scratch[32];
  const int64_t row = L::row();
  const int live = row < rows ? width : 0;  // elements of this row
  C v[L::Ept];
  L::read(x + row * width, live, C(0), v);
  C total = 0;
#pragma unroll
  for (int i = 0; i < L::Ept; ++i) total += v[i];
  const C mean = L::reduce(total, Sum(), C(0), scratch) / C(width);
  C squares = 0;
#pragma unroll
  for (int k = 0; k < L::Ept / L::V; ++k) {
    if (L::start(k) >= live) continue;
#pragma unroll
    for (int j = 0; j < L::V; ++j) squares += (v[k * L::V + j] - mean) * (v[k * L::V + j] - mean);
  }
  const C deviation = sqrt(L::reduce(squares, Sum(), C(0), scratch) / C(width)) + epsilon;
#pragma unroll
  for (int i = 0; i < L::Ept; ++i) v[i] = (v[i] - mean) / deviation;
  L::write(y + row * width, live, v);
}

// Any rows: a block a row, which it reads three times.
template <typename T, int V>
__global__ void __launch_bounds__(1024)
    mean_variance_segments(const T* x, T* y, int64_t rows, int64_t width, int64_t segments, Compute<T> epsilon) {
  using C = Compute<T>;
  __shared__ C scratch[32];
  const int64_t groups = width / V, first = blockIdx.x * width, count = groups * segments;
  const C n = static_cast<C>(count * V);
  const auto for_each = [&](const auto& f) {
    for (int64_t i = threadIdx.x; i < count; i += blockDim.x) {
      const int64_t segment = segments == 1 ? 0 : i / groups;
      const int64_t at = first + segment * rows * width + (i - segment * groups) * V;
      const Vec<T, V> in = load<T, V>(x + at);
      C v[V];
#pragma unroll
      for (int j = 0; j < V; ++j) v[j] = to_compute(in[j]);
      f(at, v);
    }
  };
  C total = 0;
  for_each([&](int64_t, const C(&v)[V]) {
#pragma unroll
    for (int j = 0; j < V; ++j) total += v[j];
  });
  const C mean = block_reduce(total, Sum(), C(0), scratch) / n;
  C squares = 0;
  for_each([&](int64_t, const C(&v)[V]) {
#pragma unroll
    for (int j = 0; j < V; ++j) squares += (v[j] - mean) * (v[j] - mean);
  });
  const C deviation = sqrt(block_reduce(squares, Sum(), C(0), scratch) / n) + epsilon;
  for_each([&](int64_t at, const C(&v)[V]) {
    Vec<T, V> out;
#pragma unroll
    for (int j = 0; j < V; ++j) out[j] = from_compute<T>((v[j] - mean) / deviation);
    store<T, V>(y + at, out);
  });
}

template <typename T, int V>
cudaError_t launch_vectors(const MeanVarianceParams& p, cudaStream_t stream) {
  const T* x = static_cast<const T*>(p.x);
  T* y = static_cast<T*>(p.y);
  const Compute<T> epsilon = static_cast<Compute<T>>(p.epsilon);
  const auto in_registers = [&]<typename L>() {
    mean_variance_rows<L>
        <<<blocks_for(p.rows, L::kRows), L::kBlock, 0, stream>>>(x, y, p.rows, static_cast<int>(p.width), epsilon);
  };
  if (p.segments > 1 || !with_row_layout<T, V>(p.rows, p.width, in_registers))
    mean_variance_segments<T, V>
        <<<static_cast<unsigned>(p.rows), 1024, 0, stream>>>(x, y, p.rows, p.width, p.segments, epsilon);
  return cudaGetLastError();
}

template <typename T>
cudaError_t launch(const MeanVarianceParams& p, cudaStream_t stream) {
  return rows_are_vectors<T>(p.width, p.x, p.y) ? launch_vectors<T, kVec16<T>>(p, stream)
                                                : launch_vectors<T, 1>(p, stream);
}

}  // namespace

cudaError_t launch_mean_variance(const MeanVarianceParams& p, cudaStream_t stream) {
  if (p.segments * p.rows * p.width == 0) return cudaSuccess;
  return by_float_type(p.dtype, [&]<typename T>() { return launch<T>(p, stream); });
}

}  // namespace cuvil
