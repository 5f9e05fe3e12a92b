#include "device/activation.cuh"
#include "device/index.cuh"
#include "device/vec.cuh"
#include "kernels/depthwise_conv.cuh"

namespace cuvil {
namespace {

constexpr int kThreads = 256;

// Kernel positions of output coordinate `at` that lie inside the input: [first, last), and the input coordinate of 0.
struct Taps {
  int start, first, last;
};
__device__ __forceinline__ Taps taps(const DepthwiseConvParams& p, int d, int at) {
  Taps t;
  t.start = at * p.stride[d] - p.pad[d];
  t.first = t.start < 0 ? (-t.start + p.dilation[d] - 1) / p.dilation[d] : 0;
  const int room = p.in[d] - t.start;
  const int fit = room <= 0 ? 0 : (room + p.dilation[d] - 1) / p.dilation[d];
  t.last = fit < p.kernel[d] ? fit : p.kernel[d];
  return t;
}

// Channels first: a block works on one plane, whose filter is in shared memory.
template <typename T>
__global__ void __launch_bounds__(kThreads) planes_kernel(DepthwiseConvParams p) {
  __shared__ float filter[kMaxDepthwiseKernel];
  const int taps_count = p.kernel[0] * p.kernel[1];
  const int in_pixels = p.in[0] * p.in[1], out_pixels = p.out[0] * p.out[1];
  const int plane = blockIdx.x;
  const int channel = plane % static_cast<int>(p.c);
  for (int i = threadIdx.x; i < taps_count; i += kThreads)
    filter[i] = device::to_compute(static_cast<const T*>(p.w)[channel * taps_count + i]);
  __syncthreads();
  const float bias = p.bias ? device::to_compute(static_cast<const T*>(p.bias)[channel]) : 0.f;
  const T* const x = static_cast<const T*>(p.x) + plane * in_pixels;
  for (int i = blockIdx.y * kThreads + threadIdx.x; i < out_pixels; i += gridDim.y * kThreads) {
    const int row = i / p.out[1], column = i - row * p.out[1];
    const Taps r = taps(p, 0, row), c = taps(p, 1, column);
    float sum = 0;
    for (int a = r.first; a < r.last; ++a) {
      const T* const line = x + (r.start + a * p.dilation[0]) * p.in[1] + c.start;
      for (int b = c.first; b < c.last; ++b)
        sum = fmaf(device::to_compute(line[b * p.dilation[1]]), filter[a * p.kernel[1] + b], sum);
    }
    const int at = plane * out_pixels + i;
    sum += bias;
    if (p.z) sum += device::to_compute(static_cast<const T*>(p.z)[at]);
    static_cast<T*>(p.y)[at] = device::from_compute<T>(device::activate(p.activation, sum));
  }
}

// Channels last: `lanes` vectors of N channels across a block, output pixels down; the filters of those channels are in
// shared memory, transposed so that a lane's N values of one tap are neighbours. With the kernel's size known (kSize >
// 0, square), the loads of a row of taps are all on their way before the first is waited for.
constexpr int kMostLanes = 8;

template <typename T, int N, int kSize, typename Act>
__global__ void __launch_bounds__(kThreads) channels_last_kernel(DepthwiseConvParams p, int lanes) {
  extern __shared__ float filters[];  // [taps][lanes * N]
  const int rows_of_taps = kSize > 0 ? kSize : p.kernel[0], row_of_taps = kSize > 0 ? kSize : p.kernel[1];
  const int taps_count = rows_of_taps * row_of_taps, channels = static_cast<int>(p.c);
  const int block_channels = lanes * N, first_channel = blockIdx.y * block_channels;
  for (int i = threadIdx.x; i < taps_count * block_channels; i += kThreads) {
    const int own = i / taps_count, tap = i - own * taps_count, channel = first_channel + own;
    filters[tap * block_channels + own] =
        channel < channels ? device::to_compute(static_cast<const T*>(p.w)[channel * taps_count + tap]) : 0.f;
  }
  __syncthreads();
  const int lane = threadIdx.x % lanes, channel = first_channel + lane * N;
  const int out_pixels = p.out[0] * p.out[1];
  const int pixel = blockIdx.x * (kThreads / lanes) + threadIdx.x / lanes;
  if (channel >= channels || pixel >= static_cast<int>(p.n) * out_pixels) return;
  const int image = pixel / out_pixels, position = pixel - image * out_pixels;
  const int row = position / p.out[1], column = position - row * p.out[1];
  const T* const x = static_cast<const T*>(p.x) + image * p.in[0] * p.in[1] * channels + channel;
  const float* const filter = filters + lane * N;
  float sum[N];
#pragma unroll
  for (int k = 0; k < N; ++k) sum[k] = 0;
  const auto add = [&](const device::Vec<T, N>& v, int tap) {
#pragma unroll
    for (int k = 0; k < N; ++k) sum[k] = fmaf(device::to_compute(v[k]), filter[tap * block_channels + k], sum[k]);
  };
  if constexpr (kSize > 0) {
    const int top = row * p.stride[0] - p.pad[0], left = column * p.stride[1] - p.pad[1];
#pragma unroll
    for (int a = 0; a < kSize; ++a) {
      const int y = top + a * p.dilation[0];
      const bool row_inside = static_cast<unsigned>(y) < static_cast<unsigned>(p.in[0]);
      device::Vec<T, N> v[kSize];
      bool inside[kSize];
#pragma unroll
      for (int b = 0; b < kSize; ++b) {
        const int at = left + b * p.dilation[1];
        inside[b] = row_inside && static_cast<unsigned>(at) < static_cast<unsigned>(p.in[1]);
        if (inside[b]) v[b] = device::load<T, N>(x + (y * p.in[1] + at) * channels);
      }
#pragma unroll
      for (int b = 0; b < kSize; ++b)
        if (inside[b]) add(v[b], a * kSize + b);
    }
  } else {
    const Taps r = taps(p, 0, row), c = taps(p, 1, column);
    for (int a = r.first; a < r.last; ++a) {
      const int line = (r.start + a * p.dilation[0]) * p.in[1] + c.start;
      for (int b = c.first; b < c.last; ++b)
        add(device::load<T, N>(x + (line + b * p.dilation[1]) * channels), a * p.kernel[1] + b);
    }
  }
  const int at = pixel * channels + channel;
  if (p.bias) {
    const auto v = device::load<T, N>(static_cast<const T*>(p.bias) + channel);
#pragma unroll
    for (int k = 0; k < N; ++k) sum[k] += device::to_compute(v[k]);
  }
  if (p.z) {
    const auto v = device::load<T, N>(static_cast<const T*>(p.z) + at);
#pragma unroll
    for (int k = 0; k < N; ++k) sum[k] += device::to_compute(v[k]);
  }
  device::Vec<T, N> result;
#pragma unroll
  for (int k = 0; k < N; ++k) result[k] = device::from_compute<T>(Act::apply(p.activation, sum[k]));
  device::store(static_cast<T*>(p.y) + at, result);
}

template <typename T, int N, int kSize, typename Act>
cudaError_t launch_tile(const DepthwiseConvParams& p, cudaStream_t stream) {
  int lanes = kMostLanes;
  while (lanes > 1 && lanes * N >= 2 * p.c) lanes /= 2;  // idle lanes where channels are few
  const int64_t pixels = p.n * p.out[0] * p.out[1];
  const dim3 grid(device::blocks_for(pixels, kThreads / lanes), device::blocks_for(p.c, lanes * N));
  const size_t shared = sizeof(float) * static_cast<size_t>(p.kernel[0] * p.kernel[1] * lanes * N);
  channels_last_kernel<T, N, kSize, Act><<<grid, kThreads, shared, stream>>>(p, lanes);
  return cudaGetLastError();
}

template <typename T, int N, int kSize>
cudaError_t launch_activated(const DepthwiseConvParams& p, cudaStream_t stream) {
  switch (p.activation.kind) {
    case Activation::kNone:
      return launch_tile<T, N, kSize, device::Known<Activation::kNone>>(p, stream);
    case Activation::kRelu:
      return launch_tile<T, N, kSize, device::Known<Activation::kRelu>>(p, stream);
    case Activation::kClip:
      return launch_tile<T, N, kSize, device::Known<Activation::kClip>>(p, stream);
    case Activation::kHardSwish:
      return launch_tile<T, N, kSize, device::Known<Activation::kHardSwish>>(p, stream);
    default:
      return launch_tile<T, N, kSize, device::AnyActivation>(p, stream);
  }
}

template <typename T, int N>
cudaError_t launch_last(const DepthwiseConvParams& p, cudaStream_t stream) {
  if constexpr (N > 1) {
    const bool square = p.kernel[0] == p.kernel[1];
    if (square && p.kernel[0] == 3) return launch_activated<T, N, 3>(p, stream);
    if (square && p.kernel[0] == 5) return launch_activated<T, N, 5>(p, stream);
  }
  return launch_tile<T, N, 0, device::AnyActivation>(p, stream);
}

template <typename T>
cudaError_t launch(const DepthwiseConvParams& p, cudaStream_t stream) {
  if (!p.channels_last) {
    const unsigned across = device::blocks_for(int64_t{p.out[0]} * p.out[1], kThreads);
    const dim3 grid(static_cast<unsigned>(p.n * p.c), across < 1024 ? across : 1024);
    planes_kernel<T><<<grid, kThreads, 0, stream>>>(p);
    return cudaGetLastError();
  }
  constexpr int N = device::kVec16<T>;
  const auto aligned = [](const void* q) { return reinterpret_cast<uintptr_t>(q) % 16 == 0; };
  if (p.c % N == 0 && aligned(p.x) && aligned(p.y) && aligned(p.z) && aligned(p.bias))
    return launch_last<T, N>(p, stream);
  return launch_last<T, 1>(p, stream);
}

}  // namespace

cudaError_t launch_depthwise_conv(const DepthwiseConvParams& p, cudaStream_t stream) {
  if (p.n * p.c * p.out[0] * p.out[1] == 0) return cudaSuccess;
  switch (p.dtype) {
    case DType::kF32:
      return launch<float>(p, stream);
    case DType::kF16:
      return launch<__half>(p, stream);
    case DType::kBF16:
      return launch<__nv_bfloat16>(p, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace cuvil
