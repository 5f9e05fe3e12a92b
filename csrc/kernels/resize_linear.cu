// Linear and cubic interpolation: a weighted sum over taps^K input elements, K being the number of resized dimensions.
#include <type_traits>

#include "kernels/resize_impl.cuh"

namespace cuvil::resize_impl {
namespace {

// Input offsets and weights of an output index along one dimension.
template <int Taps>
struct Stencil {
  int64_t offset[Taps];
  float weight[Taps];
};

__device__ __forceinline__ int32_t clamp(int32_t i, const Dim& d) { return min(max(i, 0), d.in - 1); }

__device__ __forceinline__ void fill(float x, const Dim& d, const ResizeParams&, Stencil<2>* s) {
  x = fminf(fmaxf(x, 0.0f), static_cast<float>(d.in - 1));
  const int32_t first = static_cast<int32_t>(x), second = min(first + 1, d.in - 1);
  const float t = x - static_cast<float>(first);
  s->offset[0] = first * d.in_stride;
  s->offset[1] = second * d.in_stride;
  s->weight[0] = 1 - t;
  s->weight[1] = t;
}

// Keys' kernel: one polynomial up to distance 1, another up to 2.
__device__ __forceinline__ float keys(float distance, float a) {
  const float x = fabsf(distance);
  if (x <= 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
}

__device__ __forceinline__ void fill(float x, const Dim& d, const ResizeParams& p, Stencil<4>* s) {
  const float base = floorf(x), t = x - base;
  const int32_t first = static_cast<int32_t>(base) - 1;
  float sum = 0;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const int32_t i = first + k;
    const bool skip = p.exclude_outside && (i < 0 || i >= d.in);
    s->weight[k] = skip ? 0.0f : keys(t + 1 - static_cast<float>(k), p.cubic_a);
    s->offset[k] = clamp(i, d) * d.in_stride;
    sum += s->weight[k];
  }
  if (!p.exclude_outside) return;
#pragma unroll
  for (int k = 0; k < 4; ++k) s->weight[k] /= sum;
}

// Sum over the stencils of dimensions [Level, K).
template <int Level, int K, int Taps, typename T, typename A>
__device__ __forceinline__ A gather(const T* x, const Stencil<Taps> (&s)[K]) {
  if constexpr (Level == K) {
    return static_cast<A>(device::to_compute(*x));
  } else {
    A sum = 0;
#pragma unroll
    for (int k = 0; k < Taps; ++k)
      sum += static_cast<A>(s[Level].weight[k]) * gather<Level + 1, K, Taps, T, A>(x + s[Level].offset[k], s);
    return sum;
  }
}

template <typename T>
using Accumulator = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <typename T, typename A>
__device__ __forceinline__ T result(A v) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(v);  // towards zero, as ONNX Runtime
  else
    return device::from_compute<T>(v);
}

template <typename T, int Taps, int K>
__global__ void __launch_bounds__(kThreads)
    interpolate(const T* __restrict__ x, T* __restrict__ y, uint32_t total, ResizeParams p, Layout l) {
  using A = Accumulator<T>;
  const uint32_t o = blockIdx.x * kThreads + threadIdx.x;
  if (o >= total) return;
  Stencil<Taps> stencils[K];
  uint32_t rest = o;
  int64_t offset = 0;
  int found = 0;
  bool extrapolate = false;
  for (int k = l.rank - 1; k >= 0; --k) {
    const Dim& d = l.dim[k];
    uint32_t i;
    d.out.divmod(rest, rest, i);
    if (!d.resized) {
      offset += i * d.in_stride;
      continue;
    }
    const float at = coordinate(p.coordinates, i, d);
    extrapolate = extrapolate || outside(at, d);
    Stencil<Taps> s;
    fill(at, d, p, &s);
#pragma unroll
    for (int j = 0; j < K; ++j)  // constant indices keep the stencils in registers
      if (j == found) stencils[j] = s;
    ++found;
  }
  A v = gather<0, K, Taps, T, A>(x + offset, stencils);
  if (p.coordinates == ResizeCoordinates::kCropAndResize && extrapolate) v = p.extrapolation;
  y[o] = result<T, A>(v);
}

template <typename T, int Taps>
cudaError_t dispatch_rank(const ResizeParams& p, uint32_t total, cudaStream_t stream) {
  int resized = 0;
  for (int k = 0; k < p.rank; ++k) resized += p.resized[k];
  const Layout l = layout_of(p);
  const T* x = static_cast<const T*>(p.x);
  T* y = static_cast<T*>(p.y);
  const unsigned blocks = device::blocks_for(total, kThreads);
  if (resized == 1)
    interpolate<T, Taps, 1><<<blocks, kThreads, 0, stream>>>(x, y, total, p, l);
  else if (resized == 2)
    interpolate<T, Taps, 2><<<blocks, kThreads, 0, stream>>>(x, y, total, p, l);
  else if (resized == 3)
    interpolate<T, Taps, 3><<<blocks, kThreads, 0, stream>>>(x, y, total, p, l);
  else
    return cudaErrorNotSupported;
  return cudaGetLastError();
}

template <typename T>
cudaError_t dispatch_mode(const ResizeParams& p, uint32_t total, cudaStream_t stream) {
  if (p.mode == ResizeMode::kCubic) return dispatch_rank<T, 4>(p, total, stream);
  return dispatch_rank<T, 2>(p, total, stream);
}

}  // namespace

cudaError_t launch_interpolating(const ResizeParams& p, uint32_t total, cudaStream_t stream) {
  const bool cubic = p.mode == ResizeMode::kCubic;
  switch (p.dtype) {
    case DType::kF32:
      return dispatch_mode<float>(p, total, stream);
    case DType::kF16:
      return dispatch_mode<__half>(p, total, stream);
    case DType::kBF16:
      return dispatch_mode<__nv_bfloat16>(p, total, stream);
    case DType::kF64:
      return dispatch_mode<double>(p, total, stream);
    case DType::kU8:
      return cubic ? cudaErrorNotSupported : dispatch_rank<uint8_t, 2>(p, total, stream);
    case DType::kI8:
      return cubic ? cudaErrorNotSupported : dispatch_rank<int8_t, 2>(p, total, stream);
    case DType::kI32:
      return cubic ? cudaErrorNotSupported : dispatch_rank<int32_t, 2>(p, total, stream);
    default:
      return cudaErrorNotSupported;
  }
}

}  // namespace cuvil::resize_impl
