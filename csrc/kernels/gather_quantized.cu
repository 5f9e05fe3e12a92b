#include "device/index.cuh"
#include "device/quant.cuh"
#include "kernels/gather_quantized.cuh"

namespace cuvil {
namespace {

using namespace device;

constexpr int kThreads = 256;

template <Code C>
__device__ __forceinline__ int zero_point(const GatherQuantizedParams& p, int64_t i) {
  if (!p.zero_point) return p.default_zero;
  return read_code<C>(p.zero_point, p.is_signed, i / p.zero_row * p.zero_pitch + i % p.zero_row);
}

// Number of the scale of element `from` of data.
__device__ __forceinline__ int64_t scale_place(const QuantLayout& l, int64_t from) {
  const int64_t line = from / l.inner;
  return line / l.axis * l.stride_outer + line % l.axis / l.block * l.stride_axis + from % l.inner * l.stride_inner;
}

// A thread has V neighbouring elements of a row; they share one scale when `uniform`.
template <typename T, Code C, int V>
__global__ void __launch_bounds__(kThreads) gather_quantized(GatherQuantizedParams p, int64_t total, bool uniform) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * V;
  if (i >= total) return;
  const int64_t row = i / p.inner, column = i - row * p.inner, j = row % p.count, outer = row / p.count;
  const int64_t index = resolve_index(read_index(p.indices, p.indices64, j), p.axis, p.out_of_range);
  Vec<T, V> y;
  if (index < 0) {
#pragma unroll
    for (int k = 0; k < V; ++k) y[k] = from_compute<T>(0.f);
  } else {
    const int64_t from = (outer * p.axis + index) * p.inner + column;
    float scale = 0;
    int zero = 0;
#pragma unroll
    for (int k = 0; k < V; ++k) {
      if (k == 0 || !uniform) {
        const int64_t at = scale_place(p.layout, from + k);
        scale = to_compute(static_cast<const T*>(p.scale)[at]);
        zero = zero_point<C>(p, at);
      }
      y[k] = from_compute<T>(static_cast<float>(read_code<C>(p.data, p.is_signed, from + k) - zero) * scale);
    }
  }
  store<T, V>(static_cast<T*>(p.y) + i, y);
}

template <typename T, Code C>
cudaError_t launch(const GatherQuantizedParams& p, int64_t total, cudaStream_t stream) {
  constexpr int V = kVec16<T>;
  if (p.inner % V == 0 && reinterpret_cast<uintptr_t>(p.y) % 16 == 0) {
    const bool uniform = p.layout.inner == 1 && p.layout.axis % V == 0 && p.layout.block % V == 0;
    gather_quantized<T, C, V><<<blocks_for(total / V, kThreads), kThreads, 0, stream>>>(p, total, uniform);
  } else {
    gather_quantized<T, C, 1><<<blocks_for(total, kThreads), kThreads, 0, stream>>>(p, total, true);
  }
  return cudaGetLastError();
}

template <typename T>
cudaError_t launch(const GatherQuantizedParams& p, int64_t total, cudaStream_t stream) {
  return p.bits == 4 ? launch<T, Code::kInt4>(p, total, stream) : launch<T, Code::kInt8>(p, total, stream);
}

}  // namespace

cudaError_t launch_gather_quantized(const GatherQuantizedParams& p, cudaStream_t stream) {
  const int64_t total = p.outer * p.count * p.inner;
  if (total == 0) return cudaSuccess;
  switch (p.dtype) {
    case DType::kF32:
      return launch<float>(p, total, stream);
    case DType::kF16:
      return launch<__half>(p, total, stream);
    case DType::kBF16:
      return launch<__nv_bfloat16>(p, total, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace cuvil
