#include "device/by_type.cuh"
#include "device/index.cuh"
#include "kernels/deform_conv.cuh"

namespace cuvil {
namespace {

using namespace device;

constexpr int kThreads = 256;

// The image at (row, column), interpolated.
template <typename T>
__device__ __forceinline__ Compute<T> sample(const T* image, int height, int width, Compute<T> row, Compute<T> column) {
  using C = Compute<T>;
  // Also false for NaN.
  if (!(row > -1 && row < static_cast<C>(height) && column > -1 && column < static_cast<C>(width))) return 0;
  const C row_floor = floor(row), column_floor = floor(column);
  const int top = static_cast<int>(row_floor), left = static_cast<int>(column_floor);
  const C down = row - row_floor, right = column - column_floor;
  const auto pixel = [&](int r, int c) -> C {
    if (r < 0 || r >= height || c < 0 || c >= width) return 0;
    return to_compute(image[static_cast<int64_t>(r) * width + c]);
  };
  return (1 - down) * ((1 - right) * pixel(top, left) + right * pixel(top, left + 1)) +
         down * ((1 - right) * pixel(top + 1, left) + right * pixel(top + 1, left + 1));
}

template <typename T>
__global__ void __launch_bounds__(kThreads) deform_conv(const DeformConvParams p, int64_t total) {
  using C = Compute<T>;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= total) return;
  const int64_t area = static_cast<int64_t>(p.out_h) * p.out_w, plane = quotient(i, area), place = i - plane * area;
  const int64_t n = quotient(plane, p.out_channels);
  const int out_channel = static_cast<int>(plane - n * p.out_channels);
  const int out_row = static_cast<int>(quotient(place, p.out_w));
  const int out_column = static_cast<int>(place - static_cast<int64_t>(out_row) * p.out_w);
  const int in_group = p.channels / p.group, in_offset_group = p.channels / p.offset_group;
  const int taps = p.kernel_h * p.kernel_w;
  const int first = out_channel / (p.out_channels / p.group) * in_group;
  const T* x = static_cast<const T*>(p.x) + n * p.channels * p.height * p.width;
  const T* w = static_cast<const T*>(p.w) + static_cast<int64_t>(out_channel) * in_group * taps;
  const T* offset = static_cast<const T*>(p.offset) + n * p.offset_group * taps * 2 * area + place;
  const T* mask = p.mask ? static_cast<const T*>(p.mask) + n * p.offset_group * taps * area + place : nullptr;
  C sum = 0;
  for (int c = 0; c < in_group; ++c) {
    const int channel = first + c;
    const T* image = x + static_cast<int64_t>(channel) * p.height * p.width;
    const int64_t moved = static_cast<int64_t>(channel / in_offset_group) * taps;
    for (int t = 0; t < taps; ++t) {
      const int kernel_row = t / p.kernel_w, kernel_column = t - kernel_row * p.kernel_w;
      const C row = static_cast<C>(out_row * p.stride_h - p.pad_top + kernel_row * p.dilation_h) +
                    to_compute(offset[(moved + t) * 2 * area]);
      const C column = static_cast<C>(out_column * p.stride_w - p.pad_left + kernel_column * p.dilation_w) +
                       to_compute(offset[((moved + t) * 2 + 1) * area]);
      C value = sample(image, p.height, p.width, row, column);
      if (mask) value *= to_compute(mask[(moved + t) * area]);
      sum += value * to_compute(w[c * taps + t]);
    }
  }
  if (p.bias) sum += to_compute(static_cast<const T*>(p.bias)[out_channel]);
  static_cast<T*>(p.y)[i] = from_compute<T>(sum);
}

}  // namespace

cudaError_t launch_deform_conv(const DeformConvParams& p, cudaStream_t stream) {
  const int64_t total = p.batch * p.out_channels * p.out_h * p.out_w;
  if (total == 0) return cudaSuccess;
  if (total > int64_t{kThreads} * INT32_MAX) return cudaErrorInvalidValue;
  return by_float_type(p.dtype, [&]<typename T>() {
    deform_conv<T><<<blocks_for(total, kThreads), kThreads, 0, stream>>>(p, total);
    return cudaGetLastError();
  });
}

}  // namespace cuvil
