#include "device/activation.cuh"
#include "device/by_type.cuh"
#include "device/index.cuh"
#include "device/launch.cuh"
#include "device/vec.cuh"
#include "kernels/gated_unit.cuh"

namespace cuvil {
namespace {

using namespace device;

constexpr int kThreads = 256;

// `total` and `columns` (of one row of y) are in vectors of V elements.
template <typename T, int V, typename Act, typename Div>
__global__ void __launch_bounds__(kThreads) gated_unit(const T* __restrict__ x, T* __restrict__ y, int64_t total,
                                                       Div columns, bool gate_first, ActivationParams activation) {
  let_successor_start();
  using C = Compute<T>;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < total; i += step) {
    typename Div::Index row, column;
    columns.divmod(static_cast<typename Div::Index>(i), row, column);
    const int64_t width = static_cast<int64_t>(columns.divisor);
    const T* first = x + (static_cast<int64_t>(row) * 2 * width + column) * V;
    const T* second = first + width * V;
    const Vec<T, V> gate = load<T, V>(gate_first ? first : second), up = load<T, V>(gate_first ? second : first);
    Vec<T, V> out;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      out[j] = from_compute<T>(Act::template apply<C>(activation, to_compute(gate[j])) * to_compute(up[j]));
    }
    store<T, V>(y + i * V, out);
  }
}

template <typename T, int V, typename Act>
cudaError_t launch_vector(const GatedUnitParams& p, cudaStream_t stream) {
  const int64_t columns = p.n / V, total = p.rows * columns;
  const int64_t blocks = (total + kThreads - 1) / kThreads;
  const unsigned grid = static_cast<unsigned>(blocks < (1 << 24) ? blocks : 1 << 24);
  const T* x = static_cast<const T*>(p.x);
  T* y = static_cast<T*>(p.y);
  if (total <= kMaxIndex32) {
    gated_unit<T, V, Act><<<grid, kThreads, 0, stream>>>(x, y, total, FastDiv32(static_cast<uint32_t>(columns)),
                                                         p.gate_first, p.activation);
  } else {
    gated_unit<T, V, Act>
        <<<grid, kThreads, 0, stream>>>(x, y, total, Div64(static_cast<uint64_t>(columns)), p.gate_first, p.activation);
  }
  return cudaGetLastError();
}

template <typename T, typename Act>
cudaError_t launch_activation(const GatedUnitParams& p, cudaStream_t stream) {
  const auto aligned = [](const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; };
  if (p.n % kVec16<T> == 0 && aligned(p.x) && aligned(p.y)) return launch_vector<T, kVec16<T>, Act>(p, stream);
  return launch_vector<T, 1, Act>(p, stream);
}

}  // namespace

cudaError_t launch_gated_unit(const GatedUnitParams& p, cudaStream_t stream) {
  if (p.rows * p.n == 0) return cudaSuccess;
  return by_float_type(p.dtype, [&]<typename T>() {
    switch (p.activation.kind) {
      case Activation::kSwish:
        return launch_activation<T, Known<Activation::kSwish>>(p, stream);
      case Activation::kGelu:
        return launch_activation<T, Known<Activation::kGelu>>(p, stream);
      case Activation::kGeluTanh:
        return launch_activation<T, Known<Activation::kGeluTanh>>(p, stream);
      case Activation::kSigmoid:
        return launch_activation<T, Known<Activation::kSigmoid>>(p, stream);
      default:
        return launch_activation<T, AnyActivation>(p, stream);
    }
  });
}

}  // namespace cuvil
