#include "device/index.cuh"
#include "device/reduce.cuh"
#include "device/vec.cuh"
#include "kernels/cumsum.cuh"

namespace cuvil {
namespace {

constexpr int kThreads = 256;

struct Adds {
  using combine = device::Sum;
  static constexpr int kIdentity = 0;
};
struct Multiplies {
  using combine = device::Prod;
  static constexpr int kIdentity = 1;
};

// The values of this lane and the lower ones, combined.
template <typename A, typename Combine>
__device__ __forceinline__ A warp_scan(A v, Combine combine) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const A below = __shfl_up_sync(device::kFullMask, v, distance);
    if (lane >= distance) v = combine(below, v);
  }
  return v;
}

// inner == 1: a block a row, kThreads elements a step, the result so far carried along.
template <typename T, typename F>
__global__ void __launch_bounds__(kThreads) scan_rows(CumSumParams p) {
  using A = device::Compute<T>;
  constexpr A kNone{F::kIdentity};
  constexpr typename F::combine combine;
  __shared__ A warp_totals[kThreads / 32];
  const T* x = static_cast<const T*>(p.x) + blockIdx.x * p.n;
  T* y = static_cast<T*>(p.y) + blockIdx.x * p.n;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  A carry = kNone;
  for (int64_t base = 0; base < p.n; base += kThreads) {
    const int64_t step = base + threadIdx.x, i = p.reverse ? p.n - 1 - step : step;
    const A own = step < p.n ? device::to_compute(x[i]) : kNone;
    const A within = warp_scan(own, combine);
    if (lane == 31) warp_totals[warp] = within;
    __syncthreads();
    A before = carry, total = carry;
    for (int w = 0; w < kThreads / 32; ++w) {
      if (w < warp) before = combine(before, warp_totals[w]);
      total = combine(total, warp_totals[w]);
    }
    // Excluding by subtraction would turn inf - inf into NaN and lose digits, as would division: the neighbour's
    // inclusive result is exact.
    A lower = __shfl_up_sync(device::kFullMask, within, 1);
    if (lane == 0) lower = kNone;
    if (step < p.n) y[i] = device::from_compute<T>(combine(before, p.exclusive ? lower : within));
    carry = total;
    __syncthreads();
  }
}

// inner > 1: a thread a column.
template <typename T, typename F>
__global__ void __launch_bounds__(kThreads) scan_columns(CumSumParams p) {
  using A = device::Compute<T>;
  const int64_t o = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (o >= p.outer * p.inner) return;
  const int64_t first = o / p.inner * p.n * p.inner + o % p.inner;
  constexpr typename F::combine combine;
  A sum{F::kIdentity};
  for (int64_t step = 0; step < p.n; ++step) {
    const int64_t i = first + (p.reverse ? p.n - 1 - step : step) * p.inner;
    const A own = device::to_compute(static_cast<const T*>(p.x)[i]), next = combine(sum, own);
    static_cast<T*>(p.y)[i] = device::from_compute<T>(p.exclusive ? sum : next);
    sum = next;
  }
}

template <typename T, typename F>
cudaError_t launch_scan(const CumSumParams& p, cudaStream_t stream) {
  if (p.inner == 1)
    scan_rows<T, F><<<static_cast<unsigned>(p.outer), kThreads, 0, stream>>>(p);
  else
    scan_columns<T, F><<<device::blocks_for(p.outer * p.inner, kThreads), kThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

template <typename T>
cudaError_t launch(const CumSumParams& p, cudaStream_t stream) {
  return p.product ? launch_scan<T, Multiplies>(p, stream) : launch_scan<T, Adds>(p, stream);
}

}  // namespace

cudaError_t launch_cumsum(const CumSumParams& p, cudaStream_t stream) {
  if (p.outer * p.n * p.inner == 0) return cudaSuccess;
  if (p.outer * p.inner > device::kMaxIndex32) return cudaErrorInvalidValue;
  switch (p.dtype) {
    case DType::kF32:
      return launch<float>(p, stream);
    case DType::kF16:
      return launch<__half>(p, stream);
    case DType::kBF16:
      return launch<__nv_bfloat16>(p, stream);
    case DType::kF64:
      return launch<double>(p, stream);
    case DType::kI32:
      return launch<int32_t>(p, stream);
    case DType::kI64:
      return launch<int64_t>(p, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace cuvil
