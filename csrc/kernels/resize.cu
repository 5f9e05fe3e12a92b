#include <cstring>

#include "device/by_type.cuh"
#include "kernels/resize.cuh"
#include "kernels/resize_impl.cuh"

namespace cuvil {
namespace resize_impl {
namespace {

__device__ __forceinline__ int32_t round_to_index(ResizeNearest how, float x, const Dim& d) {
  float r;
  switch (how) {
    case ResizeNearest::kRoundPreferFloor:
      r = ceilf(__fsub_rn(x, 0.5f));
      break;
    case ResizeNearest::kRoundPreferCeil:
      r = floorf(__fadd_rn(x, 0.5f));
      break;
    case ResizeNearest::kFloor:
      r = floorf(x);
      break;
    case ResizeNearest::kCeil:
      r = ceilf(x);
      break;
    default:
      r = d.scale < 1 ? ceilf(x) : floorf(x);
  }
  return static_cast<int32_t>(fminf(fmaxf(r, 0.0f), static_cast<float>(d.in - 1)));
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    nearest(const T* __restrict__ x, T* __restrict__ y, uint32_t total, ResizeCoordinates coordinates,
            ResizeNearest rounding, T extrapolation, Layout l) {
  const uint32_t o = blockIdx.x * kThreads + threadIdx.x;
  if (o >= total) return;
  uint32_t rest = o;
  int64_t offset = 0;
  bool extrapolate = false;
  for (int k = l.rank - 1; k >= 0; --k) {
    const Dim& d = l.dim[k];
    uint32_t i;
    d.out.divmod(rest, rest, i);
    int32_t from = static_cast<int32_t>(i);
    if (d.resized) {
      const float at = coordinate(coordinates, i, d);
      extrapolate = extrapolate || outside(at, d);
      from = round_to_index(rounding, at, d);
    }
    offset += from * d.in_stride;
  }
  T v = x[offset];
  if (coordinates == ResizeCoordinates::kCropAndResize && extrapolate) v = extrapolation;
  y[o] = v;
}

template <typename T>
cudaError_t launch(const ResizeParams& p, uint32_t total, cudaStream_t stream) {
  T extrapolation;
  std::memcpy(&extrapolation, p.extrapolation_bits, sizeof(T));
  nearest<T><<<device::blocks_for(total, kThreads), kThreads, 0, stream>>>(
      static_cast<const T*>(p.x), static_cast<T*>(p.y), total, p.coordinates, p.nearest, extrapolation, layout_of(p));
  return cudaGetLastError();
}

}  // namespace

Layout layout_of(const ResizeParams& p) {
  Layout l;
  l.rank = p.rank;
  for (int k = 0; k < p.rank; ++k)
    l.dim[k] = {device::FastDiv32(static_cast<uint32_t>(p.out[k])),
                static_cast<int32_t>(p.in[k]),
                p.in_stride[k],
                p.scale[k],
                p.roi_start[k],
                p.roi_end[k],
                p.resized[k]};
  return l;
}

cudaError_t launch_nearest(const ResizeParams& p, uint32_t total, cudaStream_t stream) {
  return device::by_element_size<16>(p.element_size, [&]<typename T>() { return launch<T>(p, total, stream); });
}

}  // namespace resize_impl

cudaError_t launch_resize(const ResizeParams& p, cudaStream_t stream) {
  int64_t total = 1;
  for (int k = 0; k < p.rank; ++k) {
    total *= p.out[k];
    if (p.in[k] > device::kMaxIndex32) return cudaErrorNotSupported;
  }
  if (total == 0) return cudaSuccess;
  if (total > device::kMaxIndex32) return cudaErrorNotSupported;
  const uint32_t count = static_cast<uint32_t>(total);
  return p.mode == ResizeMode::kNearest ? resize_impl::launch_nearest(p, count, stream)
                                        : resize_impl::launch_interpolating(p, count, stream);
}

}  // namespace cuvil
