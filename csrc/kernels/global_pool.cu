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

// x [n, pixels, c]: kLanes vectors of N channels across, kRows pixels down; the rows meet in shared memory.
constexpr int kLanes = 16, kRows = kThreads / kLanes;

template <typename T, int N, bool Max>
__global__ void __launch_bounds__(kThreads)
    channels_last_kernel(const T* __restrict__ x, T* __restrict__ y, int64_t c, int64_t pixels) {
  __shared__ Compute<T> partial[kRows][kLanes * N];
  const int lane = threadIdx.x % kLanes, row = threadIdx.x / kLanes;
  const int64_t channel = (static_cast<int64_t>(blockIdx.x) * kLanes + lane) * N;
  const T* const image = x + static_cast<int64_t>(blockIdx.y) * pixels * c;
  const bool active = channel < c;
  Compute<T> total[N];
#pragma unroll
  for (int k = 0; k < N; ++k) total[k] = Max && active ? device::to_compute(image[channel + k]) : Compute<T>(0);
  if (active) {
    for (int64_t i = row; i < pixels; i += kRows) {
      const auto v = device::load<T, N>(image + i * c + channel);
#pragma unroll
      for (int k = 0; k < N; ++k) total[k] = PoolReduce<T, Max>::combine(total[k], device::to_compute(v[k]));
    }
  }
#pragma unroll
  for (int k = 0; k < N; ++k) partial[row][lane * N + k] = total[k];
  for (int half = kRows / 2; half > 0; half /= 2) {
    __syncthreads();
    if (row < half) {
#pragma unroll
      for (int k = 0; k < N; ++k) {
        Compute<T>& mine = partial[row][lane * N + k];
        mine = PoolReduce<T, Max>::combine(mine, partial[row + half][lane * N + k]);
      }
    }
  }
  if (row == 0 && active) {
    device::Vec<T, N> result;
#pragma unroll
    for (int k = 0; k < N; ++k) result[k] = finish<T, Max>(partial[0][lane * N + k], pixels);
    device::store(y + static_cast<int64_t>(blockIdx.y) * c + channel, result);
  }
}

template <typename T, int N, bool Max>
cudaError_t launch_last(const GlobalPoolParams& p, cudaStream_t stream) {
  // Grid y is limited to 65535: larger batches go in slices.
  constexpr int64_t kSlice = 65535;
  for (int64_t first = 0; first < p.n; first += kSlice) {
    const int64_t images = p.n - first < kSlice ? p.n - first : kSlice;
    const dim3 grid(device::blocks_for(p.c / N, kLanes), static_cast<unsigned>(images));
    channels_last_kernel<T, N, Max><<<grid, kThreads, 0, stream>>>(static_cast<const T*>(p.x) + first * p.pixels * p.c,
                                                                   static_cast<T*>(p.y) + first * p.c, p.c, p.pixels);
  }
  return cudaGetLastError();
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
  if (p.c % N == 0 && aligned(p.x) && aligned(p.y)) return launch_last<T, N, Max>(p, stream);
  return launch_last<T, 1, Max>(p, stream);
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
