#include <algorithm>

#include "device/by_type.cuh"
#include "device/index.cuh"
#include "device/vec.cuh"
#include "kernels/grid_sample.cuh"

namespace cuvil {
namespace {

using device::Compute;

constexpr int kThreads = 256;
// A thread samples one position of as many channels as leave this many threads, which fill a large device.
constexpr int64_t kManyThreads = 1 << 18;

// Single operations, unfused: a coordinate that ONNX Runtime rounds to a tie must be one here too, or nearest would
// pick the neighbour.
__device__ __forceinline__ float denormalize(float v, int length, bool align) {
  if (align) return __fmul_rn(__fadd_rn(v, 1.f) / 2.f, static_cast<float>(length - 1));
  return __fsub_rn(__fmul_rn(__fadd_rn(v, 1.f), static_cast<float>(length)), 1.f) / 2.f;
}
__device__ __forceinline__ double denormalize(double v, int length, bool align) {
  if (align) return __dmul_rn(__dadd_rn(v, 1.) / 2., static_cast<double>(length - 1));
  return __dsub_rn(__dmul_rn(__dadd_rn(v, 1.), static_cast<double>(length)), 1.) / 2.;
}

// Where pixel i of a row of `length` is found, or -1 where there is none.
__device__ __forceinline__ int pixel(int i, int length, GridSamplePadding padding, bool align) {
  if (i >= 0 && i < length) return i;
  if (padding == GridSamplePadding::kZeros) return -1;
  if (padding == GridSamplePadding::kBorder) return i < 0 ? 0 : length - 1;
  // Mirrored at the centres of the outermost pixels, which occur once a period, or at their edges.
  const int period = align ? 2 * (length - 1) : 2 * length;
  if (period == 0) return 0;
  int place = i % period;
  if (place < 0) place += period;
  return place < length ? place : (align ? period - place : period - 1 - place);
}

// The K pixels of one dimension that a coordinate touches, and their weights.
template <typename C, int K>
struct Taps {
  int at[K];
  C weight[K];

  __device__ __forceinline__ void set(C x, int length, GridSamplePadding padding, bool align) {
    // Far outside, all pixels are padding; integers hold what lies between. A NaN becomes the lower end.
    constexpr C kFar = C(1 << 30);
    x = x > -kFar ? (x < kFar ? x : kFar) : -kFar;
    const C below = K == 1 ? rint(x) : floor(x);
    const C t = x - below;
    const int first = static_cast<int>(below) - (K == 4 ? 1 : 0);
    if constexpr (K == 1) {
      weight[0] = C(1);
    } else if constexpr (K == 2) {
      weight[0] = C(1) - t;
      weight[1] = t;
    } else {
      constexpr C a = C(-0.75);
      const C s = C(1) - t, u = C(1) + t, v = C(2) - t;
      weight[0] = ((a * u - C(5) * a) * u + C(8) * a) * u - C(4) * a;
      weight[1] = ((a + C(2)) * t - (a + C(3))) * t * t + C(1);
      weight[2] = ((a + C(2)) * s - (a + C(3))) * s * s + C(1);
      weight[3] = ((a * v - C(5) * a) * v + C(8) * a) * v - C(4) * a;
    }
#pragma unroll
    for (int k = 0; k < K; ++k) at[k] = pixel(first + k, length, padding, align);
  }
};

template <typename T, int K>
__device__ __forceinline__ Compute<T> row_value(const T* row, const Taps<Compute<T>, K>& taps) {
  Compute<T> sum = 0;
#pragma unroll
  for (int k = 0; k < K; ++k)
    if (taps.at[k] >= 0) sum += taps.weight[k] * device::to_compute(row[taps.at[k]]);
  return sum;
}

template <typename T, int Spatial, int K>
__global__ void __launch_bounds__(kThreads) grid_sample(GridSampleParams p, int64_t run, int64_t chunks) {
  using C = Compute<T>;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t rest = device::quotient(thread, p.positions), position = thread - rest * p.positions;
  const int64_t image = device::quotient(rest, chunks), chunk = rest - image * chunks;
  if (image >= p.n) return;

  Taps<C, K> taps[3];
#pragma unroll
  for (int d = 3 - Spatial; d < 3; ++d) {
    const int64_t at = (image * p.positions + position) * Spatial + (2 - d);
    const C v = p.grid_dtype == DType::kF32 ? static_cast<C>(static_cast<const float*>(p.grid)[at])
                                            : device::to_compute(static_cast<const T*>(p.grid)[at]);
    taps[d].set(denormalize(v, p.in[d], p.align_corners), p.in[d], p.padding, p.align_corners);
  }
  const int row = p.in[2], plane = p.in[1] * row;
  const int64_t volume = static_cast<int64_t>(p.in[0]) * plane;
  const int64_t last = min((chunk + 1) * run, p.c);
  for (int64_t channel = chunk * run; channel < last; ++channel) {
    const T* const x = static_cast<const T*>(p.x) + (image * p.c + channel) * volume;
    C sum = 0;
    const auto add_plane = [&](const T* from, C weight) {
#pragma unroll
      for (int k = 0; k < K; ++k)
        if (taps[1].at[k] >= 0)
          sum += weight * taps[1].weight[k] * row_value<T, K>(from + taps[1].at[k] * row, taps[2]);
    };
    if constexpr (Spatial == 3) {
#pragma unroll
      for (int k = 0; k < K; ++k)
        if (taps[0].at[k] >= 0) add_plane(x + static_cast<int64_t>(taps[0].at[k]) * plane, taps[0].weight[k]);
    } else {
      add_plane(x, C(1));
    }
    static_cast<T*>(p.y)[(image * p.c + channel) * p.positions + position] = device::from_compute<T>(sum);
  }
}

template <typename T>
cudaError_t launch(const GridSampleParams& p, cudaStream_t stream) {
  const int64_t run = std::clamp<int64_t>(p.n * p.positions * p.c / kManyThreads, 1, p.c);
  const int64_t chunks = (p.c + run - 1) / run, threads = p.n * chunks * p.positions;
  if ((threads + kThreads - 1) / kThreads > device::kMaxIndex32) return cudaErrorInvalidValue;
  const bool three = p.spatial == 3;
  if (p.mode == GridSampleMode::kCubic && three) return cudaErrorInvalidValue;
  const auto kernel = p.mode == GridSampleMode::kCubic    ? grid_sample<T, 2, 4>
                      : p.mode == GridSampleMode::kLinear ? (three ? grid_sample<T, 3, 2> : grid_sample<T, 2, 2>)
                                                          : (three ? grid_sample<T, 3, 1> : grid_sample<T, 2, 1>);
  kernel<<<device::blocks_for(threads, kThreads), kThreads, 0, stream>>>(p, run, chunks);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_grid_sample(const GridSampleParams& p, cudaStream_t stream) {
  if (p.n * p.c * p.positions == 0) return cudaSuccess;
  return device::by_float_type(p.dtype, [&]<typename T>() { return launch<T>(p, stream); });
}

}  // namespace cuvil
