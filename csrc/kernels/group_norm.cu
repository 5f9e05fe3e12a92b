#include "device/activation.cuh"
#include "device/index.cuh"
#include "device/quant.cuh"
#include "device/reduce.cuh"
#include "kernels/group_norm.cuh"

namespace cuvil {
namespace {

using namespace device;

constexpr int kThreads = 256;

template <typename T>
__device__ __forceinline__ float sum_at(const GroupNormParams& p, int64_t image, int64_t pixel, int64_t c) {
  const int64_t i = (image * p.pixels + pixel) * p.channels + c;
  float s = to_compute(static_cast<const T*>(p.x)[i]);
  if (p.skip) s += to_compute(static_cast<const T*>(p.skip)[p.skip_by_image ? image * p.channels + c : i]);
  if (p.bias) s += to_compute(static_cast<const T*>(p.bias)[c]);
  return s;
}

__device__ __forceinline__ int64_t slice_begin(const GroupNormParams& p, int64_t slice) {
  return p.pixels * slice / kGroupNormSlices;
}

// Mean and sum of squared distances from it, of one slice of a group: a block each.
template <typename T, typename Div>
__global__ void __launch_bounds__(kThreads) slice_statistics(GroupNormParams p, Div by_width) {
  __shared__ float shared[32];
  const int64_t slice = blockIdx.x % kGroupNormSlices, group = blockIdx.x / kGroupNormSlices;
  const int64_t image = group / p.groups, width = p.channels / p.groups, first = group % p.groups * width;
  const int64_t begin = slice_begin(p, slice), count = (slice_begin(p, slice + 1) - begin) * width;
  float total = 0;
  const auto value = [&](int64_t i) {
    typename Div::Index pixel, c;
    by_width.divmod(static_cast<typename Div::Index>(i), pixel, c);
    return sum_at<T>(p, image, begin + static_cast<int64_t>(pixel), first + static_cast<int64_t>(c));
  };
  for (int64_t i = threadIdx.x; i < count; i += kThreads) total += value(i);
  const float mean = block_reduce(total, Sum(), 0.f, shared) / static_cast<float>(count > 0 ? count : 1);
  float squares = 0;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) {
    const float d = value(i) - mean;
    squares += d * d;
  }
  squares = block_reduce(squares, Sum(), 0.f, shared);
  if (threadIdx.x == 0) p.partial[2 * blockIdx.x] = mean, p.partial[2 * blockIdx.x + 1] = squares;
}

// The slices of a group together: mean and 1 / standard deviation. A thread a group; behind the slices' numbers.
__global__ void __launch_bounds__(kThreads) group_statistics(GroupNormParams p, int64_t all_groups) {
  const int64_t group = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (group >= all_groups) return;
  const float* slices = p.partial + group * 2 * kGroupNormSlices;
  const int64_t width = p.channels / p.groups;
  const float count = static_cast<float>(p.pixels * width);
  float mean = 0, squares = 0;
  for (int s = 0; s < kGroupNormSlices; ++s)
    mean += slices[2 * s] * static_cast<float>((slice_begin(p, s + 1) - slice_begin(p, s)) * width) / count;
  for (int s = 0; s < kGroupNormSlices; ++s) {
    const float d = slices[2 * s] - mean;
    squares += slices[2 * s + 1] + d * d * static_cast<float>((slice_begin(p, s + 1) - slice_begin(p, s)) * width);
  }
  float* result = p.partial + all_groups * 2 * kGroupNormSlices + 2 * group;
  result[0] = mean;
  result[1] = 1.f / sqrtf(squares / count + p.epsilon);
}

template <typename T, typename Div>
__global__ void __launch_bounds__(kThreads)
    normalize(GroupNormParams p, int64_t total, int64_t all_groups, Div by_channels, Div by_pixels, Div by_width) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= total) return;
  typename Div::Index line, c, image, pixel;
  by_channels.divmod(static_cast<typename Div::Index>(i), line, c);
  by_pixels.divmod(line, image, pixel);
  const int64_t group = static_cast<int64_t>(image) * p.groups + static_cast<int64_t>(by_width.div(c));
  const float* statistics = p.partial + all_groups * 2 * kGroupNormSlices + 2 * group;
  const float s = sum_at<T>(p, image, pixel, c);
  float v = (s - statistics[0]) * statistics[1] * read_float(p.gamma, p.affine_dtype, c) +
            read_float(p.beta, p.affine_dtype, c);
  if (p.silu) v *= sigmoid(v);
  static_cast<T*>(p.y)[i] = from_compute<T>(v);
  if (p.sum) static_cast<T*>(p.sum)[i] = from_compute<T>(s);
}

template <typename T, typename Div>
cudaError_t launch(const GroupNormParams& p, cudaStream_t stream) {
  const int64_t total = p.images * p.pixels * p.channels, all_groups = p.images * p.groups;
  const auto by = [](int64_t divisor) { return Div(static_cast<typename Div::Index>(divisor)); };
  const Div by_width = by(p.channels / p.groups);
  const unsigned slices = static_cast<unsigned>(all_groups * kGroupNormSlices);
  slice_statistics<T, Div><<<slices, kThreads, 0, stream>>>(p, by_width);
  group_statistics<<<blocks_for(all_groups, kThreads), kThreads, 0, stream>>>(p, all_groups);
  normalize<T, Div><<<blocks_for(total, kThreads), kThreads, 0, stream>>>(p, total, all_groups, by(p.channels),
                                                                          by(p.pixels), by_width);
  return cudaGetLastError();
}

template <typename T>
cudaError_t launch(const GroupNormParams& p, cudaStream_t stream) {
  const bool narrow = p.images * p.pixels * p.channels <= kMaxIndex32;
  return narrow ? launch<T, FastDiv32>(p, stream) : launch<T, Div64>(p, stream);
}

}  // namespace

cudaError_t launch_group_norm(const GroupNormParams& p, cudaStream_t stream) {
  if (p.images * p.pixels * p.channels == 0) return cudaSuccess;
  switch (p.dtype) {
    case DType::kF32:
      return launch<float>(p, stream);
    case DType::kF16:
      return launch<__half>(p, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace cuvil
