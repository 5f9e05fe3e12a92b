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

template <typename T, Code C>
__global__ void __launch_bounds__(kThreads) gather_quantized(GatherQuantizedParams p, int64_t total) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= total) return;
  const int64_t column = i % p.inner, row = i / p.inner, j = row % p.count, outer = row / p.count;
  const int64_t index = resolve_index(read_index(p.indices, p.indices64, j), p.axis, p.out_of_range);
  float v = 0;
  if (index >= 0) {
    const int64_t from = (outer * p.axis + index) * p.inner + column;
    const QuantLayout& l = p.layout;
    const int64_t at = from / l.inner / l.axis * l.stride_outer + from / l.inner % l.axis / l.block * l.stride_axis +
                       from % l.inner * l.stride_inner;
    const int code = read_code<C>(p.data, p.is_signed, from) - zero_point<C>(p, at);
    v = static_cast<float>(code) * to_compute(static_cast<const T*>(p.scale)[at]);
  }
  static_cast<T*>(p.y)[i] = from_compute<T>(v);
}

template <typename T>
cudaError_t launch(const GatherQuantizedParams& p, int64_t total, cudaStream_t stream) {
  const unsigned blocks = blocks_for(total, kThreads);
  if (p.bits == 4)
    gather_quantized<T, Code::kInt4><<<blocks, kThreads, 0, stream>>>(p, total);
  else
    gather_quantized<T, Code::kInt8><<<blocks, kThreads, 0, stream>>>(p, total);
  return cudaGetLastError();
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
