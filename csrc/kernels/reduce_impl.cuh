// The kernels behind reduce.cuh, instantiated by reduce_<family>.cu.
//
// A family is a struct of device functions over an accumulator:
//   Acc<A>            accumulator of accumulation type A
//   identity<A>()     result of nothing
//   take<A>(x)        the accumulator of one element
//   combine           functor (Acc, Acc) -> Acc
//   value<A>(acc)     back to A
#pragma once

#include <cuda_runtime.h>

#include <type_traits>

#include "device/index.cuh"
#include "device/reduce.cuh"
#include "device/vec.cuh"
#include "kernels/reduce.cuh"
#include "plan/reduce_tile.h"

namespace cuvil::reduce_impl {

using device::Compute;
using device::Vec;

constexpr int kThreads = kReduceThreads;
constexpr int kUnroll = 4;  // loads in flight a thread

// What turns the accumulated value into the result.
enum class Finish { kNone, kDivide, kSqrt, kLog };

template <typename A>
__device__ __forceinline__ A finish(A v, Finish how, int64_t count) {
  if constexpr (std::is_same_v<A, float>) {
    switch (how) {
      case Finish::kDivide:
        return __fdiv_rn(v, static_cast<float>(count));
      case Finish::kSqrt:
        return __fsqrt_rn(v);
      case Finish::kLog:
        return logf(v);
      default:
        return v;
    }
  } else if constexpr (std::is_same_v<A, double>) {
    switch (how) {
      case Finish::kDivide:
        return v / static_cast<double>(count);
      case Finish::kSqrt:
        return sqrt(v);
      case Finish::kLog:
        return log(v);
      default:
        return v;
    }
  } else {
    switch (how) {
      case Finish::kDivide:
        return static_cast<A>(v / static_cast<A>(count));
      case Finish::kSqrt:
        return static_cast<A>(sqrt(static_cast<double>(v)));
      case Finish::kLog:
        return static_cast<A>(log(static_cast<double>(v)));
      default:
        return v;
    }
  }
}

// Where a result goes: a partial of type A, or an element of type Out.
template <typename A, typename Out>
struct Target {
  void* y;
  bool partial;
  Finish how;
  int64_t count;

  __device__ __forceinline__ void write(int64_t i, A v) const {
    if (partial)
      static_cast<A*>(y)[i] = v;
    else
      static_cast<Out*>(y)[i] = device::from_compute<Out>(finish(v, how, count));
  }
};

// Accumulates x[0, n) with `Lanes` threads, this one being `lane`: single elements up to the first 16-byte boundary,
// vectors, single elements at the end.
template <typename F, typename In, int Lanes>
__device__ __forceinline__ auto accumulate(const In* __restrict__ x, int64_t n, int lane) {
  using A = Compute<In>;
  constexpr int V = device::kVec16<In>;
  typename F::combine combine;
  auto acc = F::template identity<A>();
  const int64_t misaligned =
      static_cast<int64_t>(reinterpret_cast<uintptr_t>(x) % 16) / static_cast<int64_t>(sizeof(In));
  const int64_t head = misaligned == 0 ? 0 : min(n, V - misaligned);
  for (int64_t i = lane; i < head; i += Lanes) acc = combine(acc, F::template take<A>(device::to_compute(x[i])));
  const int64_t vectors = (n - head) / V;
  const In* body = x + head;
  for (int64_t i = lane; i < vectors; i += Lanes * kUnroll) {
    Vec<In, V> v[kUnroll];
#pragma unroll
    for (int k = 0; k < kUnroll; ++k)
      if (i + k * Lanes < vectors) v[k] = device::load<In, V>(body + (i + k * Lanes) * V);
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
      if (i + k * Lanes < vectors) {
#pragma unroll
        for (int j = 0; j < V; ++j) acc = combine(acc, F::template take<A>(device::to_compute(v[k][j])));
      }
    }
  }
  for (int64_t i = head + vectors * V + lane; i < n; i += Lanes)
    acc = combine(acc, F::template take<A>(device::to_compute(x[i])));
  return acc;
}

// inner == 1: `Lanes` threads a (row, part).
template <typename F, typename In, typename Out, int Lanes>
__global__ void __launch_bounds__(kThreads) reduce_rows(const In* __restrict__ x, int64_t rows, int64_t n,
                                                        int64_t parts, int64_t chunk, Target<Compute<In>, Out> target) {
  using A = Compute<In>;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * (kThreads / Lanes) + threadIdx.x / Lanes;
  const bool active = item < rows * parts;  // idle lanes stay for the shuffles
  const int64_t row = active ? item / parts : 0, begin = active ? (item - row * parts) * chunk : 0;
  const int64_t length = active ? max(int64_t{0}, min(chunk, n - begin)) : 0;
  auto acc = accumulate<F, In, Lanes>(x + row * n + begin, length, threadIdx.x % Lanes);
  if constexpr (Lanes <= 32) {
    acc = device::warp_reduce<Lanes>(acc, typename F::combine{});
  } else {
    __shared__ decltype(acc) shared[32];
    acc = device::block_reduce(acc, typename F::combine{}, F::template identity<A>(), shared);
  }
  if (active && threadIdx.x % Lanes == 0) target.write(item, F::template value<A>(acc));
}

// inner > 1: a block covers `columns` threads of V neighbouring outputs, times 256 / columns slices of the reduced run.
template <typename F, typename In, typename Out, int V>
__global__ void __launch_bounds__(kThreads)
    reduce_columns(const In* __restrict__ x, int64_t n, int64_t inner, int64_t parts, int64_t chunk, int columns,
                   device::Div64 tiles, Target<Compute<In>, Out> target) {
  using A = Compute<In>;
  using Acc = typename F::template Acc<A>;
  __shared__ Acc shared[kThreads * V];
  typename F::combine combine;
  uint64_t item, tile;
  tiles.divmod(blockIdx.x, item, tile);
  const int64_t outer = static_cast<int64_t>(item) / parts, part = static_cast<int64_t>(item) - outer * parts;
  const int column = threadIdx.x % columns, slice = threadIdx.x / columns, slices = kThreads / columns;
  const int64_t i = (static_cast<int64_t>(tile) * columns + column) * V;
  const int64_t begin = part * chunk, end = min(n, begin + chunk);

  Acc acc[V];
#pragma unroll
  for (int j = 0; j < V; ++j) acc[j] = F::template identity<A>();
  if (i < inner) {
    const In* from = x + outer * n * inner + i;
    for (int64_t r = begin + slice; r < end; r += slices * kUnroll) {
      Vec<In, V> v[kUnroll];
#pragma unroll
      for (int k = 0; k < kUnroll; ++k)
        if (r + k * slices < end) v[k] = device::load<In, V>(from + (r + k * slices) * inner);
#pragma unroll
      for (int k = 0; k < kUnroll; ++k) {
        if (r + k * slices < end) {
#pragma unroll
          for (int j = 0; j < V; ++j) acc[j] = combine(acc[j], F::template take<A>(device::to_compute(v[k][j])));
        }
      }
    }
  }
#pragma unroll
  for (int j = 0; j < V; ++j) shared[j * kThreads + threadIdx.x] = acc[j];
  // Slices fold in halves; columns and 256 are powers of two.
  for (int half = slices / 2; half > 0; half /= 2) {
    __syncthreads();
    if (slice < half) {
#pragma unroll
      for (int j = 0; j < V; ++j) {
        Acc* mine = shared + j * kThreads + threadIdx.x;
        *mine = combine(*mine, mine[half * columns]);
      }
    }
  }
  if (slice != 0 || i >= inner) return;
#pragma unroll
  for (int j = 0; j < V; ++j)
    target.write(static_cast<int64_t>(item) * inner + i + j, F::template value<A>(shared[j * kThreads + threadIdx.x]));
}

template <typename F, typename In, typename Out>
cudaError_t launch(const ReduceParams& p, Finish how, cudaStream_t stream) {
  const Target<Compute<In>, Out> target{p.y, p.y_partial, how, p.count};
  const In* x = static_cast<const In*>(p.x);
  constexpr int V = device::kVec16<In>;
  // A part begins at a vector boundary, if its row does.
  int64_t chunk = (p.reduce + p.parts - 1) / p.parts;
  chunk = (chunk + V - 1) / V * V;
  if (p.inner == 1) {
    const int64_t items = p.outer * p.parts;
    const int lanes = chunk <= 8 * V ? 4 : (chunk <= 256 * V ? 32 : kThreads);
    const int64_t blocks = (items + kThreads / lanes - 1) / (kThreads / lanes);
    if (blocks > device::kMaxIndex32) return cudaErrorInvalidValue;
    const auto kernel = lanes == 4    ? reduce_rows<F, In, Out, 4>
                        : lanes == 32 ? reduce_rows<F, In, Out, 32>
                                      : reduce_rows<F, In, Out, kThreads>;
    kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(x, p.outer, p.reduce, p.parts, chunk, target);
  } else {
    const bool vectors = p.inner % V == 0 && reinterpret_cast<uintptr_t>(x) % 16 == 0;
    const int64_t groups = vectors ? p.inner / V : p.inner;
    const int columns = static_cast<int>(reduce_tile_columns(p.outer * p.parts, chunk, groups));
    const int64_t tiles = (groups + columns - 1) / columns, blocks = p.outer * p.parts * tiles;
    if (blocks > device::kMaxIndex32) return cudaErrorInvalidValue;
    const auto kernel = vectors ? reduce_columns<F, In, Out, V> : reduce_columns<F, In, Out, 1>;
    kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(x, p.reduce, p.inner, p.parts, chunk, columns,
                                                                   device::Div64(static_cast<uint64_t>(tiles)), target);
  }
  return cudaGetLastError();
}

// Element or partial as input.
template <typename F, typename T>
cudaError_t launch_typed(const ReduceParams& p, Finish how, cudaStream_t stream) {
  if (p.x_partial) return launch<F, Compute<T>, T>(p, how, stream);
  return launch<F, T, T>(p, how, stream);
}

template <typename F>
cudaError_t launch_floats(const ReduceParams& p, Finish how, cudaStream_t stream) {
  switch (p.dtype) {
    case DType::kF32:
      return launch_typed<F, float>(p, how, stream);
    case DType::kF16:
      return launch_typed<F, __half>(p, how, stream);
    case DType::kBF16:
      return launch_typed<F, __nv_bfloat16>(p, how, stream);
    case DType::kF64:
      return launch_typed<F, double>(p, how, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

template <typename F>
cudaError_t launch_numbers(const ReduceParams& p, Finish how, cudaStream_t stream) {
  switch (p.dtype) {
    case DType::kI32:
      return launch_typed<F, int32_t>(p, how, stream);
    case DType::kI64:
      return launch_typed<F, int64_t>(p, how, stream);
    default:
      return launch_floats<F>(p, how, stream);
  }
}

// Families, by file.
cudaError_t launch_sum(const ReduceParams& p, Finish how, cudaStream_t stream);
cudaError_t launch_abs_sum(const ReduceParams& p, Finish how, cudaStream_t stream);
cudaError_t launch_square_sum(const ReduceParams& p, Finish how, cudaStream_t stream);
cudaError_t launch_max(const ReduceParams& p, cudaStream_t stream);
cudaError_t launch_min(const ReduceParams& p, cudaStream_t stream);
cudaError_t launch_prod(const ReduceParams& p, cudaStream_t stream);
cudaError_t launch_log_sum_exp(const ReduceParams& p, cudaStream_t stream);

}  // namespace cuvil::reduce_impl
