#include "device/index.cuh"
#include "device/quant.cuh"
#include "kernels/quantize.cuh"

namespace cuvil {
namespace {

using namespace device;

constexpr int kThreads = 256;
constexpr int kEach = 8;  // elements a thread

// QuantLayout for the device. `uniform`: the kEach elements of a thread share one scale.
template <typename Div>
struct Place {
  Div inner, axis, block;
  int64_t stride_outer, stride_axis, stride_inner;
  bool uniform;

  explicit Place(const QuantLayout& l)
      : inner(static_cast<typename Div::Index>(l.inner)),
        axis(static_cast<typename Div::Index>(l.axis)),
        block(static_cast<typename Div::Index>(l.block)),
        stride_outer(l.stride_outer),
        stride_axis(l.stride_axis),
        stride_inner(l.stride_inner) {
    const bool one = stride_outer == 0 && stride_axis == 0 && stride_inner == 0;
    const bool rows = stride_inner == 0 && l.inner % kEach == 0;
    const bool blocks = l.inner == 1 && l.block % kEach == 0 && l.axis % kEach == 0;
    uniform = one || rows || blocks;
  }
  __device__ __forceinline__ int64_t near(int64_t i) const {
    typename Div::Index rest, o, a, in;
    inner.divmod(static_cast<typename Div::Index>(i), rest, in);
    axis.divmod(rest, o, a);
    return static_cast<int64_t>(o) * stride_outer + static_cast<int64_t>(block.div(a)) * stride_axis +
           static_cast<int64_t>(in) * stride_inner;
  }
  // Divisions of 64 bits, inlined eight times into each kernel, would take minutes to compile.
  __device__ __noinline__ int64_t far(int64_t i) const { return near(i); }
  __device__ __forceinline__ int64_t operator()(int64_t i) const {
    if constexpr (std::is_same_v<Div, Div64>) {
      return far(i);
    } else {
      return near(i);
    }
  }
};

template <typename T>
__device__ __forceinline__ void read_elements(const T* p, int count, bool aligned, T (&v)[kEach]) {
  if (aligned && count == kEach) {
    constexpr int V = kVec16<T> < kEach ? kVec16<T> : kEach;
#pragma unroll
    for (int k = 0; k < kEach; k += V) {
      const Vec<T, V> in = load<T, V>(p + k);
#pragma unroll
      for (int j = 0; j < V; ++j) v[k + j] = in[j];
    }
  } else {
    for (int k = 0; k < kEach; ++k) v[k] = k < count ? p[k] : T(0);
  }
}

template <typename T>
__device__ __forceinline__ void write_elements(T* p, int count, bool aligned, const T (&v)[kEach]) {
  if (aligned && count == kEach) {
    constexpr int V = kVec16<T> < kEach ? kVec16<T> : kEach;
#pragma unroll
    for (int k = 0; k < kEach; k += V) {
      Vec<T, V> out;
#pragma unroll
      for (int j = 0; j < V; ++j) out[j] = v[k + j];
      store<T, V>(p + k, out);
    }
  } else {
    for (int k = 0; k < count; ++k) p[k] = v[k];
  }
}

// Codes [i, i + count) from or to their low bits; i is a multiple of kEach.
template <Code C>
__device__ __forceinline__ void write_codes(void* y, int64_t i, int count, bool aligned, const int (&code)[kEach]) {
  if constexpr (kCodesPerByte<C> > 1) {
    constexpr int kMask = (1 << kCodeBits<C>)-1;
    for (int first = 0; first < count; first += kCodesPerByte<C>) {
      int byte = 0;
#pragma unroll
      for (int k = 0; k < kCodesPerByte<C>; ++k)
        if (first + k < count) byte |= (code[first + k] & kMask) << (k * kCodeBits<C>);
      static_cast<uint8_t*>(y)[(i + first) / kCodesPerByte<C>] = static_cast<uint8_t>(byte);
    }
  } else {
    using T = Uint<C == Code::kInt16 ? 2 : 1>;
    T out[kEach];
#pragma unroll
    for (int k = 0; k < kEach; ++k) out[k] = static_cast<T>(code[k]);
    write_elements(static_cast<T*>(y) + i, count, aligned, out);
  }
}

template <Code C>
__device__ __forceinline__ void read_codes(const void* x, int64_t i, int count, bool aligned, bool is_signed,
                                           int (&code)[kEach]) {
  if constexpr (kCodesPerByte<C> > 1) {
    for (int k = 0; k < kEach; ++k) code[k] = k < count ? read_code<C>(x, is_signed, i + k) : 0;
  } else {
    using T = std::conditional_t<C == Code::kInt32, int32_t, Uint<C == Code::kInt16 ? 2 : 1>>;
    T in[kEach];
    read_elements(static_cast<const T*>(x) + i, count, aligned, in);
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      code[k] = static_cast<int>(in[k]);
      if (C == Code::kInt8 && is_signed) code[k] = static_cast<int8_t>(in[k]);
      if (C == Code::kInt16 && is_signed) code[k] = static_cast<int16_t>(in[k]);
    }
  }
}

template <typename X, Code C, typename Div>
__global__ void __launch_bounds__(kThreads)
    quantize(QuantizeParams p, Place<Div> place, int64_t total, bool is_signed, bool aligned) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kEach;
  if (i >= total) return;
  const int count = total - i < kEach ? static_cast<int>(total - i) : kEach;
  X x[kEach];
  read_elements(static_cast<const X*>(p.x) + i, count, aligned, x);
  const int low = lowest_code(kCodeBits<C>, is_signed), high = highest_code(kCodeBits<C>, is_signed);
  int code[kEach];
  float scale = 1;
  int zero = 0;
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    if (k == 0 || (!place.uniform && k < count)) {
      const int64_t at = place(i + k);
      scale = read_float(p.scale, p.scale_dtype, at);
      if (C != Code::kFloat8 && p.zero_point) zero = read_code<C>(p.zero_point, is_signed, at);
    }
    const float v = __fdiv_rn(static_cast<float>(to_compute(x[k])), scale);
    if constexpr (C == Code::kFloat8) {
      code[k] = to_float8(v, p.y_dtype == DType::kF8E5M2, p.saturate);
    } else {
      code[k] = quantize_code(v, zero, low, high);
    }
  }
  write_codes<C>(p.y, i, count, aligned, code);
}

template <typename Y, Code C, typename Div>
__global__ void __launch_bounds__(kThreads)
    dequantize(DequantizeParams p, Place<Div> place, int64_t total, bool is_signed, bool aligned) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kEach;
  if (i >= total) return;
  const int count = total - i < kEach ? static_cast<int>(total - i) : kEach;
  int code[kEach];
  read_codes<C>(p.x, i, count, aligned, is_signed, code);
  Y y[kEach];
  float scale = 1;
  int zero = 0;
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    if (k == 0 || (!place.uniform && k < count)) {
      const int64_t at = place(i + k);
      scale = read_float(p.scale, p.scale_dtype, at);
      if (C != Code::kFloat8 && p.zero_point) zero = read_code<C>(p.zero_point, is_signed, at);
    }
    const float v =
        C == Code::kFloat8
            ? from_float8(static_cast<uint8_t>(code[k]), p.x_dtype == DType::kF8E5M2)
            : static_cast<float>(static_cast<int>(static_cast<unsigned>(code[k]) - static_cast<unsigned>(zero)));
    y[k] = from_compute<Y>(__fmul_rn(v, scale));
  }
  write_elements(static_cast<Y*>(p.y) + i, count, aligned, y);
}

template <typename Params>
bool aligned16(const Params& p) {
  return (reinterpret_cast<uintptr_t>(p.x) | reinterpret_cast<uintptr_t>(p.y)) % 16 == 0;
}

template <typename X, Code C>
cudaError_t launch(const QuantizeParams& p, cudaStream_t stream) {
  const int64_t total = p.layout.size();
  const unsigned blocks = blocks_for(total, kThreads * kEach);
  const bool is_signed = is_signed_code(p.y_dtype);
  if (total <= kMaxIndex32)
    quantize<X, C, FastDiv32>
        <<<blocks, kThreads, 0, stream>>>(p, Place<FastDiv32>(p.layout), total, is_signed, aligned16(p));
  else
    quantize<X, C, Div64><<<blocks, kThreads, 0, stream>>>(p, Place<Div64>(p.layout), total, is_signed, aligned16(p));
  return cudaGetLastError();
}

template <typename Y, Code C>
cudaError_t launch(const DequantizeParams& p, cudaStream_t stream) {
  const int64_t total = p.layout.size();
  const unsigned blocks = blocks_for(total, kThreads * kEach);
  const bool is_signed = is_signed_code(p.x_dtype);
  if (total <= kMaxIndex32)
    dequantize<Y, C, FastDiv32>
        <<<blocks, kThreads, 0, stream>>>(p, Place<FastDiv32>(p.layout), total, is_signed, aligned16(p));
  else
    dequantize<Y, C, Div64><<<blocks, kThreads, 0, stream>>>(p, Place<Div64>(p.layout), total, is_signed, aligned16(p));
  return cudaGetLastError();
}

// The code known, the other side's type not yet.
template <Code C, typename Params>
cudaError_t by_type(const Params& p, DType wide, cudaStream_t stream) {
  switch (wide) {
    case DType::kF32:
      return launch<float, C>(p, stream);
    case DType::kF16:
      return launch<__half, C>(p, stream);
    case DType::kBF16:
      return launch<__nv_bfloat16, C>(p, stream);
    case DType::kI32:
      if constexpr (std::is_same_v<Params, QuantizeParams>) return launch<int32_t, C>(p, stream);
      return cudaErrorInvalidValue;
    default:
      return cudaErrorInvalidValue;
  }
}

template <typename Params>
cudaError_t by_code(const Params& p, DType narrow, DType wide, cudaStream_t stream) {
  Code code;
  if (!code_of(narrow, &code)) return cudaErrorInvalidValue;
  if (p.layout.size() == 0) return cudaSuccess;
  switch (code) {
    case Code::kInt2:
      return by_type<Code::kInt2>(p, wide, stream);
    case Code::kInt4:
      return by_type<Code::kInt4>(p, wide, stream);
    case Code::kInt8:
      return by_type<Code::kInt8>(p, wide, stream);
    case Code::kInt16:
      return by_type<Code::kInt16>(p, wide, stream);
    case Code::kInt32:
      if constexpr (std::is_same_v<Params, DequantizeParams>) return by_type<Code::kInt32>(p, wide, stream);
      return cudaErrorInvalidValue;
    default:
      return by_type<Code::kFloat8>(p, wide, stream);
  }
}

}  // namespace

cudaError_t launch_quantize(const QuantizeParams& p, cudaStream_t stream) {
  return by_code(p, p.y_dtype, p.x_dtype, stream);
}

cudaError_t launch_dequantize(const DequantizeParams& p, cudaStream_t stream) {
  return by_code(p, p.x_dtype, p.y_dtype, stream);
}

}  // namespace cuvil
