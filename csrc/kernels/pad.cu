#include <cstring>

#include "device/by_type.cuh"
#include "device/index.cuh"
#include "device/vec.cuh"
#include "kernels/pad.cuh"

namespace cuvil {
namespace {

constexpr int kThreads = 256;

template <typename Div>
struct Layout {
  int rank;
  Div out_extent[8];
  int64_t in_extent[8];
  int64_t in_stride[8];
  int64_t begin[8];
};

// Index i, anywhere, to [0, n), n > 0.
template <PadMode kMode>
__device__ __forceinline__ int64_t source(int64_t i, int64_t n) {
  if (i >= 0 && i < n) return i;
  if constexpr (kMode == PadMode::kEdge) {
    return i < 0 ? 0 : n - 1;
  } else {
    const int64_t period = kMode == PadMode::kWrap ? n : 2 * (n - 1);
    if (period == 0) return 0;  // a reflection of one element
    int64_t r = i % period;
    if (r < 0) r += period;
    return r < n ? r : period - r;
  }
}

template <typename T, PadMode kMode, typename Div>
__global__ void __launch_bounds__(kThreads)
    pad(const T* __restrict__ input, T* __restrict__ output, int64_t total, T value, Layout<Div> l) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t o = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; o < total; o += step) {
    typename Div::Index rest = static_cast<typename Div::Index>(o);
    int64_t offset = 0;
    bool inside = true;
    // Not unrolled: nvcc 13.0.88 then reads the divisors of all but the first dimension 128 bytes too far.
#pragma unroll 1
    for (int d = l.rank - 1; d >= 0; --d) {
      typename Div::Index q, r;
      l.out_extent[d].divmod(rest, q, r);
      const int64_t i = static_cast<int64_t>(r) - l.begin[d];
      if constexpr (kMode == PadMode::kConstant) {
        inside = inside && i >= 0 && i < l.in_extent[d];
        offset += i * l.in_stride[d];
      } else {
        offset += source<kMode>(i, l.in_extent[d]) * l.in_stride[d];
      }
      rest = q;
    }
    T v = value;
    if (inside) v = input[offset];
    output[o] = v;
  }
}

template <typename T, PadMode kMode, typename Div>
cudaError_t launch(const PadParams& p, int64_t total, cudaStream_t stream) {
  Layout<Div> l;
  l.rank = p.rank;
  for (int d = 0; d < p.rank; ++d) {
    l.out_extent[d] = Div(static_cast<typename Div::Index>(p.out_extent[d]));
    l.in_extent[d] = p.in_extent[d];
    l.in_stride[d] = p.in_stride[d];
    l.begin[d] = p.begin[d];
  }
  T value;
  std::memcpy(&value, p.value, sizeof(T));
  pad<T, kMode, Div><<<device::blocks_for(total, kThreads), kThreads, 0, stream>>>(
      static_cast<const T*>(p.input), static_cast<T*>(p.output), total, value, l);
  return cudaGetLastError();
}

template <typename T, PadMode kMode>
cudaError_t dispatch_index(const PadParams& p, cudaStream_t stream) {
  int64_t total = 1;
  for (int d = 0; d < p.rank; ++d) total *= p.out_extent[d];
  if (total == 0) return cudaSuccess;
  return total <= device::kMaxIndex32 ? launch<T, kMode, device::FastDiv32>(p, total, stream)
                                      : launch<T, kMode, device::Div64>(p, total, stream);
}

template <typename T>
cudaError_t dispatch_mode(const PadParams& p, cudaStream_t stream) {
  switch (p.mode) {
    case PadMode::kConstant:
      return dispatch_index<T, PadMode::kConstant>(p, stream);
    case PadMode::kReflect:
      return dispatch_index<T, PadMode::kReflect>(p, stream);
    case PadMode::kEdge:
      return dispatch_index<T, PadMode::kEdge>(p, stream);
    default:
      return dispatch_index<T, PadMode::kWrap>(p, stream);
  }
}

}  // namespace

cudaError_t launch_pad(const PadParams& p, cudaStream_t stream) {
  return device::by_element_size<16>(p.element_size, [&]<typename T>() { return dispatch_mode<T>(p, stream); });
}

}  // namespace cuvil
