#include "device/by_type.cuh"
#include "device/index.cuh"
#include "device/reduce.cuh"
#include "kernels/recurrent_cell.cuh"

namespace cuvil {
namespace {

using namespace device;

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kMaxBatch = static_cast<int>(kFewSequences);

// A warp has one unit of one direction, for all sequences: it reads each of the unit's G rows of weights once. Then
// lane b finishes sequence b.
template <typename T, int G, int V>
__global__ void __launch_bounds__(kThreads) small_step(RecurrentParams p, int64_t step, const T* __restrict__ weights) {
  using C = Compute<T>;
  const int64_t unit = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (unit >= p.directions * p.hidden) return;
  const int64_t direction = unit / p.hidden, j = unit % p.hidden;
  const int lane = threadIdx.x % 32;
  const T* rows = weights + (direction * G * p.hidden + j) * p.hidden;
  const T* h = static_cast<const T*>(p.h) + direction * p.batch * p.hidden;
  C sum[G][kMaxBatch] = {};
  for (int64_t k = lane * V; k < p.hidden; k += 32 * V) {
    Vec<T, V> w[G];
#pragma unroll
    for (int g = 0; g < G; ++g) w[g] = load<T, V>(rows + g * p.hidden * p.hidden + k);
#pragma unroll
    for (int b = 0; b < kMaxBatch; ++b) {
      if (b >= p.batch) break;
      const Vec<T, V> x = load<T, V>(h + b * p.hidden + k);
#pragma unroll
      for (int g = 0; g < G; ++g)
#pragma unroll
        for (int v = 0; v < V; ++v) sum[g][b] += to_compute(w[g][v]) * to_compute(x[v]);
    }
  }
  C mine[G] = {};
#pragma unroll
  for (int b = 0; b < kMaxBatch; ++b)
#pragma unroll
    for (int g = 0; g < G; ++g) {
      const C whole = warp_reduce(sum[g][b], Sum());
      if (lane == b) mine[g] = whole;
    }
  if (lane >= p.batch) return;
  const Unit<T> u(p, (direction * p.batch + lane) * p.hidden + j, step);
  const auto recurrent = [&](int k) { return mine[k]; };
  if constexpr (G == 4) lstm_cell(u, step, recurrent);
  if constexpr (G == 3) gru_cell(u, step, recurrent);
  if constexpr (G == 1) rnn_cell(u, step, recurrent);
}

template <typename T, int G>
cudaError_t launch(const RecurrentParams& p, int64_t step, const void* weights, cudaStream_t stream) {
  constexpr int V = kVec16<T>;
  const unsigned blocks = blocks_for(p.directions * p.hidden, kWarps);
  const T* w = static_cast<const T*>(weights);
  const uintptr_t addresses = reinterpret_cast<uintptr_t>(weights) | reinterpret_cast<uintptr_t>(p.h);
  if (p.hidden % V == 0 && addresses % 16 == 0)
    small_step<T, G, V><<<blocks, kThreads, 0, stream>>>(p, step, w);
  else
    small_step<T, G, 1><<<blocks, kThreads, 0, stream>>>(p, step, w);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_small_step(const RecurrentParams& p, int64_t step, int gates, const void* weights,
                              cudaStream_t stream) {
  if (p.batch > kFewSequences) return cudaErrorInvalidValue;
  if (p.directions * p.batch * p.hidden == 0) return cudaSuccess;
  return by_float_type(p.dtype, [&]<typename T>() {
    switch (gates) {
      case 4:
        return launch<T, 4>(p, step, weights, stream);
      case 3:
        return launch<T, 3>(p, step, weights, stream);
      default:
        return launch<T, 1>(p, step, weights, stream);
    }
  });
}

}  // namespace cuvil
