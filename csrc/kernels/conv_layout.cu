#include "device/index.cuh"
#include "device/vec.cuh"
#include "kernels/conv_layout.cuh"

namespace cuvil {
namespace {

constexpr int kThreads = 256;

// Weights are repacked once when a session is built: a gather that writes coalesced is fast enough.
template <typename T>
__global__ void __launch_bounds__(kThreads) channels_last_kernel(const T* __restrict__ in, T* __restrict__ out,
                                                                 int64_t count, int64_t channels, int64_t inner) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  const int64_t c = i % channels, rest = i / channels;
  const int64_t s = rest % inner, o = rest / inner;
  out[i] = in[(o * channels + c) * inner + s];
}

template <typename T>
__global__ void __launch_bounds__(kThreads) spatial_pad_kernel(SpatialPadParams p, int64_t count) {
  int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  T* const out = static_cast<T*>(p.out) + i;
  const int64_t v = i % p.vector;
  i /= p.vector;
  int64_t at[3];
#pragma unroll
  for (int d = 2; d >= 0; --d) {
    at[d] = i % p.out_dims[d] - p.begin[d];
    i /= p.out_dims[d];
  }
  const bool inside =
      at[0] >= 0 && at[0] < p.in_dims[0] && at[1] >= 0 && at[1] < p.in_dims[1] && at[2] >= 0 && at[2] < p.in_dims[2];
  T x{};
  if (inside) {
    const int64_t position = ((i * p.in_dims[0] + at[0]) * p.in_dims[1] + at[1]) * p.in_dims[2] + at[2];
    x = static_cast<const T*>(p.in)[position * p.vector + v];
  }
  *out = x;
}

// One store of N elements a thread; the two tensors' threads follow each other.
template <int N>
__global__ void __launch_bounds__(kThreads) channel_pad_kernel(ChannelPadParams p, int64_t first_count, int64_t count) {
  int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  const bool second = i >= first_count;
  if (second) i -= first_count;
  const ChannelPadParams::Part part = second ? p.parts[1] : p.parts[0];
  const int vectors = p.out_channels / N;
  const int64_t row = i / vectors;
  const int channel = static_cast<int>(i - row * vectors) * N;
  const auto* const in = static_cast<const uint16_t*>(part.in) + row * p.in_channels + channel;
  device::Vec<uint16_t, N> v;
#pragma unroll
  for (int k = 0; k < N; ++k) v[k] = channel + k < p.in_channels ? in[k] : uint16_t{0};
  device::store(static_cast<uint16_t*>(part.out) + i * N, v);
}

// Calls f with a value of the unsigned type of that many bytes.
template <typename F>
cudaError_t by_size(size_t element, F&& f) {
  switch (element) {
    case 2:
      return f(device::Uint<2>{});
    case 4:
      return f(device::Uint<4>{});
    case 8:
      return f(device::Uint<8>{});
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t launch_channels_last(const ChannelsLastParams& p, cudaStream_t stream) {
  const int64_t count = p.outer * p.channels * p.inner;
  if (count == 0) return cudaSuccess;
  return by_size(p.element, [&](auto tag) {
    using T = decltype(tag);
    channels_last_kernel<T><<<device::blocks_for(count, kThreads), kThreads, 0, stream>>>(
        static_cast<const T*>(p.in), static_cast<T*>(p.out), count, p.channels, p.inner);
    return cudaGetLastError();
  });
}

cudaError_t launch_channel_pad(const ChannelPadParams& p, cudaStream_t stream) {
  const auto launch = [&](auto kernel, int n) {
    const int64_t first = p.parts[0].rows * (p.out_channels / n), second = p.parts[1].rows * (p.out_channels / n);
    if (first + second == 0) return cudaSuccess;
    kernel<<<device::blocks_for(first + second, kThreads), kThreads, 0, stream>>>(p, first, first + second);
    return cudaGetLastError();
  };
  return p.out_channels == 4 ? launch(channel_pad_kernel<4>, 4) : launch(channel_pad_kernel<8>, 8);
}

cudaError_t launch_spatial_pad(const SpatialPadParams& p, cudaStream_t stream) {
  const int64_t count = p.outer * p.out_dims[0] * p.out_dims[1] * p.out_dims[2] * p.vector;
  if (count == 0) return cudaSuccess;
  return by_size(p.element, [&](auto tag) {
    using T = decltype(tag);
    spatial_pad_kernel<T><<<device::blocks_for(count, kThreads), kThreads, 0, stream>>>(p, count);
    return cudaGetLastError();
  });
}

}  // namespace cuvil
