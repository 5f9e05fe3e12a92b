// Global pooling: a warp a channel where pixels are contiguous, a block a tile of channels where channels are.
#include "device/by_type.cuh"
#include "device/index.cuh"
#include "device/pool_reduce.cuh"
#include "device/vec.cuh"
#include "kernels/pool.cuh"

namespace cuvil {
namespace {

using device::Compute;
using device::PoolReduce;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

template <typename T, bool Max>
struct Combine {
  __device__ __forceinline__ Compute<T> operator()(Compute<T> a, Compute<T> b) const {
    return PoolReduce<T, Max>::combine(a, b);
  }
};

template <typename T, bool Max>
__device__ __forceinline__ T finish(Compute<T> total, int64_t pixels) {
  if constexpr (Max) return device::from_compute<T>(total);
  return device::from_compute<T>(total / static_cast<Compute<T>>(pixels));
}

// x [planes, pixels]
template <typename T, bool Max>
__global__ void __launch_bounds__(kThreads)
    channels_first_kernel(const T* __restrict__ x, T* __restrict__ y, int64_t planes, int64_t pixels) {
  const int64_t plane = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (plane >= planes) return;
  const int lane = threadIdx.x % 32;
  const T* const row = x + plane * pixels;
  // The first pixel starts a maximum: any identity above -infinity would win over it.
  Compute<T> total = Max ? device::to_compute(row[0]) : Compute<T>(0);
  for (int64_t i = lane; i < pixels; i += 32) total = PoolReduce<T, Max>::combine(total, device::to_compute(row[i]));
  total = device::warp_reduce(total, Combine<T, Max>{});
  if (lane == 0) y[plane] = finish<T, Max>(total, pixels);
}

// x [n, pixels, c]: kLanes vectors of N channels across, the other threads down the pixels. Rows of one warp meet by
// shuffles, warps in shared memory.
constexpr int kMostLanes = 16;

template <typename T, int N, bool Max, int kLanes>
__global__ void __launch_bounds__(kThreads)
    channels_last_kernel(const T* __restrict__ x, T* __restrict__ y, int64_t c, int64_t pixels) {
  constexpr int kRows = kThreads / kLanes;
  __shared__ Compute<T> partial[kWarps][kLanes * N];
  const int lane = threadIdx.x % kLanes, row = threadIdx.x / kLanes, warp = threadIdx.x / 32;
  const int64_t channel = (static_cast<int64_t>(blockIdx.x) * kLanes + lane) * N;
  const T* const image = x + static_cast<int64_t>(blockIdx.y) * pixels * c;
  const bool active = channel < c;
  Compute<T> total[N];
#pragma unroll
  for (int k = 0; k < N; ++k) total[k] = Max && active ? device::to_compute(image[channel + k]) : Compute<T>(0);
  if (active) {
#pragma unroll 4
    for (int64_t i = row; i < pixels; i += kRows) {
      const auto v = device::load<T, N>(image + i * c + channel);
#pragma unroll
      for (int k = 0; k < N; ++k) total[k] = PoolReduce<T, Max>::combine(total[k], device::to_compute(v[k]));
    }
  }
#pragma unroll
  for (int k = 0; k < N; ++k) {
#pragma unroll
    for (int mask = kLanes; mask < 32; mask *= 2)
      total[k] = PoolReduce<T, Max>::combine(total[k], device::shuffle_xor(total[k], mask));
    if (threadIdx.x % 32 < kLanes) partial[warp][lane * N + k] = total[k];
  }
  __syncthreads();
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kLanes * N + threadIdx.x;
  if (threadIdx.x >= kLanes * N || at >= c) return;
  Compute<T> all = partial[0][threadIdx.x];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) all = PoolReduce<T, Max>::combine(all, partial[w][threadIdx.x]);
  y[static_cast<int64_t>(blockIdx.y) * c + at] = finish<T, Max>(all, pixels);
}

// Few lanes where there are few channels, and where only many blocks fill the card; two vectors make a whole sector.
int lanes_for(int64_t vectors, int64_t images) {
  constexpr int kBlocks = 132;
  int lanes = kMostLanes;
  while (lanes > vectors) lanes /= 2;
  while (lanes > 2 && (vectors + lanes - 1) / lanes * images < kBlocks) lanes /= 2;
  return lanes;
}

template <typename T, int N, bool Max, int kLanes>
cudaError_t launch_last(const GlobalPoolParams& p, cudaStream_t stream) {
  // Grid y is limited to 65535: larger batches go in slices.
  constexpr int64_t kSlice = 65535;
  for (int64_t first = 0; first < p.n; first += kSlice) {
    const int64_t images = p.n - first < kSlice ? p.n - first : kSlice;
    const dim3 grid(device::blocks_for(p.c / N, kLanes), static_cast<unsigned>(images));
    channels_last_kernel<T, N, Max, kLanes><<<grid, kThreads, 0, stream>>>(
        static_cast<const T*>(p.x) + first * p.pixels * p.c, static_cast<T*>(p.y) + first * p.c, p.c, p.pixels);
  }
  return cudaGetLastError();
}

template <typename T, int N, bool Max>
cudaError_t dispatch_lanes(const GlobalPoolParams& p, cudaStream_t stream) {
  switch (lanes_for(p.c / N, p.n)) {
    case 1:
      return launch_last<T, N, Max, 1>(p, stream);
    case 2:
      return launch_last<T, N, Max, 2>(p, stream);
    case 4:
      return launch_last<T, N, Max, 4>(p, stream);
    case 8:
      return launch_last<T, N, Max, 8>(p, stream);
    default:
      return launch_last<T, N, Max, kMostLanes>(p, stream);
  }
}

template <typename T, bool Max>
cudaError_t launch(const GlobalPoolParams& p, cudaStream_t stream) {
  if (!p.channels_last) {
    const int64_t planes = p.n * p.c;
    channels_first_kernel<T, Max><<<device::blocks_for(planes, kWarps), kThreads, 0, stream>>>(
        static_cast<const T*>(p.x), static_cast<T*>(p.y), planes, p.pixels);
    return cudaGetLastError();
  }
  constexpr int N = device::kVec16<T>;
  const auto aligned = [](const void* q) { return reinterpret_cast<uintptr_t>(q) % 16 == 0; };
  if (p.c % N == 0 && aligned(p.x) && aligned(p.y)) return dispatch_lanes<T, N, Max>(p, stream);
  return launch_last<T, 1, Max, kMostLanes>(p, stream);
}

template <typename T>
cudaError_t dispatch(const GlobalPoolParams& p, cudaStream_t stream) {
  return p.max ? launch<T, true>(p, stream) : launch<T, false>(p, stream);
}

}  // namespace

cudaError_t launch_global_pool(const GlobalPoolParams& p, cudaStream_t stream) {
  if (p.n * p.c == 0) return cudaSuccess;
  return device::by_float_type(p.dtype, [&]<typename T>() { return dispatch<T>(p, stream); });
}

}  // namespace cuvil
