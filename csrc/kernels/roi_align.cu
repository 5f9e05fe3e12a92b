#include "device/by_type.cuh"
#include "device/index.cuh"
#include "device/vec.cuh"
#include "kernels/roi_align.cuh"

namespace cuvil {
namespace {

using device::Compute;

constexpr int kThreads = 256;

// The two pixels beside a coordinate and the share of the second one; `inside` is false more than a pixel outside.
template <typename C>
struct Tap {
  int low, high;
  C share;
  bool inside;

  __device__ __forceinline__ Tap(C at, int length) {
    inside = at >= C(-1) && at <= C(length);
    at = at > C(0) ? at : C(0);
    low = inside ? static_cast<int>(at) : 0;
    if (low >= length - 1) {
      low = high = length - 1;
      share = C(0);
    } else {
      high = low + 1;
      share = at - C(low);
    }
  }
};

// One side of a region: where its samples are.
template <typename C>
struct Side {
  C start, bin;
  int samples;

  __device__ __forceinline__ Side(C from, C to, const RoiAlignParams& p, int bins) {
    const C scale = static_cast<C>(p.spatial_scale), offset = p.half_pixel ? C(0.5) : C(0);
    start = from * scale - offset;
    C size = to * scale - offset - start;
    if (!p.half_pixel && !(size > C(1))) size = C(1);
    bin = size / C(bins);
    samples = p.sampling_ratio > 0 ? p.sampling_ratio : static_cast<int>(ceil(bin));
  }
  __device__ __forceinline__ C at(int b, int sample) const {
    return start + C(b) * bin + (C(sample) + C(0.5)) * bin / C(samples);
  }
};

template <typename T>
__global__ void __launch_bounds__(kThreads) roi_align(RoiAlignParams p, int64_t total) {
  using C = Compute<T>;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= total) return;
  const int64_t row = device::quotient(i, p.out_width), plane = device::quotient(row, p.out_height);
  const int64_t region = device::quotient(plane, p.c), channel = plane - region * p.c;
  const int column_bin = static_cast<int>(i - row * p.out_width);
  const int row_bin = static_cast<int>(row - plane * p.out_height);
  T* const y = static_cast<T*>(p.y) + i;
  const int64_t image = p.batch[region];
  if (image < 0 || image >= p.n) {
    if (p.out_of_range) *p.out_of_range = 1;
    *y = device::from_compute<T>(C(0));
    return;
  }
  const T* const roi = static_cast<const T*>(p.rois) + region * 4;
  const Side<C> across(device::to_compute(roi[0]), device::to_compute(roi[2]), p, p.out_width);
  const Side<C> down(device::to_compute(roi[1]), device::to_compute(roi[3]), p, p.out_height);
  const T* const x = static_cast<const T*>(p.x) + (image * p.c + channel) * p.height * p.width;
  C sum = 0, most = 0;
  for (int sy = 0; sy < down.samples; ++sy) {
    const Tap<C> v(down.at(row_bin, sy), p.height);
    for (int sx = 0; sx < across.samples; ++sx) {
      const Tap<C> u(across.at(column_bin, sx), p.width);
      C part[4] = {};
      if (u.inside && v.inside) {
        const T *const above = x + static_cast<int64_t>(v.low) * p.width, *const below =
                                                                              x +
                                                                              static_cast<int64_t>(v.high) * p.width;
        part[0] = (C(1) - v.share) * (C(1) - u.share) * device::to_compute(above[u.low]);
        part[1] = (C(1) - v.share) * u.share * device::to_compute(above[u.high]);
        part[2] = v.share * (C(1) - u.share) * device::to_compute(below[u.low]);
        part[3] = v.share * u.share * device::to_compute(below[u.high]);
      }
      sum += part[0] + part[1] + part[2] + part[3];
      // The operator's maximum is that of the weighted pixels, not of their sums.
      const C upper = max(part[0], part[1]), lower = max(part[2], part[3]), value = max(upper, lower);
      most = sy + sx == 0 ? value : max(most, value);
    }
  }
  const int64_t count = static_cast<int64_t>(max(down.samples, 0)) * max(across.samples, 0);
  *y = device::from_compute<T>(p.max ? most : sum / static_cast<C>(max(count, int64_t{1})));
}

}  // namespace

cudaError_t launch_roi_align(const RoiAlignParams& p, cudaStream_t stream) {
  const int64_t total = p.count * p.c * p.out_height * p.out_width;
  if (total == 0) return cudaSuccess;
  return device::by_float_type(p.dtype, [&]<typename T>() {
    roi_align<T><<<device::blocks_for(total, kThreads), kThreads, 0, stream>>>(p, total);
    return cudaGetLastError();
  });
}

}  // namespace cuvil
