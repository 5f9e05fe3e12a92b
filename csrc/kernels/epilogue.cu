#include "device/activation.cuh"
#include "device/by_type.cuh"
#include "device/index.cuh"
#include "device/launch.cuh"
#include "device/vec.cuh"
#include "kernels/epilogue.cuh"

namespace cuvil {
namespace {

using device::AnyActivation;
using device::Compute;
using device::Known;

constexpr int kThreads = 128;  // small blocks, so that the tensors of one image reach many multiprocessors

// N elements a thread. The host guarantees that N divides count and that, for N > 1, either `inner` is a multiple of N
// (one bias value a vector) or inner is 1 and N divides channels (N neighbouring values).
template <typename T, int N, typename Div, typename Act>
__global__ void __launch_bounds__(kThreads)
    epilogue_kernel(T* __restrict__ y, const T* __restrict__ bias, const T* __restrict__ z, typename Div::Index vectors,
                    Div inner, Div channels, ActivationParams act) {
  device::let_successor_start();
  using Index = typename Div::Index;
  const Index i = static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= vectors) return;
  const Index at = i * N;
  auto v = device::load<T, N>(y + at);
  Compute<T> x[N];
#pragma unroll
  for (int k = 0; k < N; ++k) x[k] = device::to_compute(v[k]);
  if (bias != nullptr) {
    Index row, channel;
    channels.divmod(inner.div(at), row, channel);
    const bool per_element = inner.divisor == 1 && channels.divisor != 1;
#pragma unroll
    for (int k = 0; k < N; ++k) x[k] += device::to_compute(bias[per_element ? channel + k : channel]);
  }
  if (z != nullptr) {
    const auto r = device::load<T, N>(z + at);
#pragma unroll
    for (int k = 0; k < N; ++k) x[k] += device::to_compute(r[k]);
  }
#pragma unroll
  for (int k = 0; k < N; ++k) v[k] = device::from_compute<T>(Act::apply(act, x[k]));
  device::store(y + at, v);
}

template <typename T, int N, typename Div, typename Act>
cudaError_t launch(const EpilogueParams& p, cudaStream_t stream) {
  using Index = typename Div::Index;
  const int64_t vectors = p.count / N;
  epilogue_kernel<T, N, Div, Act><<<device::blocks_for(vectors, kThreads), kThreads, 0, stream>>>(
      static_cast<T*>(p.y), static_cast<const T*>(p.bias), static_cast<const T*>(p.z), static_cast<Index>(vectors),
      Div(static_cast<Index>(p.inner)), Div(static_cast<Index>(p.channels)), p.activation);
  return cudaGetLastError();
}

template <typename T>
cudaError_t launch_vectors(const EpilogueParams& p, cudaStream_t stream) {
  constexpr int N = device::kVec16<T>;
  const auto with = [&]<typename Act>() { return launch<T, N, device::FastDiv32, Act>(p, stream); };
  if constexpr (sizeof(T) <= 4) {
    switch (p.activation.kind) {
      case Activation::kNone:
        return with.template operator()<Known<Activation::kNone>>();
      case Activation::kRelu:
        return with.template operator()<Known<Activation::kRelu>>();
      case Activation::kClip:
        return with.template operator()<Known<Activation::kClip>>();
      case Activation::kHardSigmoid:
        return with.template operator()<Known<Activation::kHardSigmoid>>();
      case Activation::kHardSwish:
        return with.template operator()<Known<Activation::kHardSwish>>();
      case Activation::kSwish:
        return with.template operator()<Known<Activation::kSwish>>();
      case Activation::kGelu:
        return with.template operator()<Known<Activation::kGelu>>();
      case Activation::kGeluTanh:
        return with.template operator()<Known<Activation::kGeluTanh>>();
      default:
        break;
    }
  }
  return with.template operator()<AnyActivation>();
}

template <typename T>
cudaError_t dispatch(const EpilogueParams& p, cudaStream_t stream) {
  constexpr int N = device::kVec16<T>;
  if (p.count > device::kMaxIndex32) return launch<T, 1, device::Div64, AnyActivation>(p, stream);
  const auto aligned = [](const void* q) { return reinterpret_cast<uintptr_t>(q) % 16 == 0; };
  const bool bias_fits = p.bias == nullptr || p.inner % N == 0 || (p.inner == 1 && p.channels % N == 0) ||
                         (p.inner == 1 && p.channels == 1);
  if (p.count % N == 0 && aligned(p.y) && aligned(p.z) && bias_fits) return launch_vectors<T>(p, stream);
  return launch<T, 1, device::FastDiv32, AnyActivation>(p, stream);
}

}  // namespace

cudaError_t launch_epilogue(const EpilogueParams& p, cudaStream_t stream) {
  if (p.count == 0) return cudaSuccess;
  return device::by_float_type(p.dtype, [&]<typename T>() { return dispatch<T>(p, stream); });
}

}  // namespace cuvil
