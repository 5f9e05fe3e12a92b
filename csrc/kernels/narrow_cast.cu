#include <type_traits>

#include "device/float8.cuh"
#include "device/index.cuh"
#include "device/vec.cuh"
#include "kernels/narrow_cast.cuh"

namespace cuvil {
namespace {

constexpr int kThreads = 256;
constexpr int kItems = 8;  // elements a thread: whole bytes of the narrowest type, 16 bytes of two-byte ones

using device::Float8Format;

// What is stored in the low bits of the result.
template <int Bits, typename T>
__device__ __forceinline__ uint32_t encode(T value, const Float8Format& format, bool saturate) {
  if constexpr (Bits == 8) {
    return device::encode_float8(static_cast<float>(device::to_compute(value)), format, saturate);
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<uint32_t>(value) & ((1u << Bits) - 1);
  } else {
    const float rounded = roundf(device::to_compute(value));
    // The comparison is false for NaN, which gives 0 as infinity does.
    const int whole = fabsf(rounded) < 2147483648.0f ? static_cast<int>(rounded) : 0;
    return static_cast<uint32_t>(whole) & ((1u << Bits) - 1);
  }
}

template <int Bits, typename T>
__device__ __forceinline__ T decode(uint32_t code, const Float8Format& format, bool is_signed) {
  if constexpr (Bits == 8) {
    const float value = device::decode_float8(code, format);
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<int>(value));  // towards zero
    } else {
      return device::from_compute<T>(value);
    }
  } else {
    constexpr int kSign = 1 << (Bits - 1);
    const int value = is_signed ? static_cast<int>(code ^ kSign) - kSign : static_cast<int>(code);
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(value);
    } else {
      return device::from_compute<T>(static_cast<float>(value));
    }
  }
}

// 8 elements of T in accesses of at most 16 bytes.
template <typename T>
constexpr int kWidth = sizeof(T) == 4 ? 4 : 8;

template <int Bits, typename T>
__global__ void __launch_bounds__(kThreads)
    narrow(const T* x, uint8_t* y, int64_t n, Float8Format format, bool saturate, bool aligned) {
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kItems;
  if (first >= n) return;
  const int count = static_cast<int>(min(static_cast<int64_t>(kItems), n - first));
  alignas(16) T values[kItems] = {};
  if (aligned && count == kItems) {
#pragma unroll
    for (int k = 0; k < kItems; k += kWidth<T>)
      reinterpret_cast<device::Vec<T, kWidth<T>>&>(values[k]) = device::load<T, kWidth<T>>(x + first + k);
  } else {
#pragma unroll  // so that nothing is indexed by a variable, and everything stays in registers
    for (int k = 0; k < kItems; ++k)
      if (k < count) values[k] = x[first + k];
  }
  uint32_t words[Bits == 8 ? 2 : 1] = {};
#pragma unroll
  for (int k = 0; k < kItems; ++k) words[k * Bits / 32] |= encode<Bits>(values[k], format, saturate) << (k * Bits % 32);
  uint8_t* out = y + first / 8 * Bits;
  if (aligned && count == kItems) {
    if constexpr (Bits == 8) {
      *reinterpret_cast<uint2*>(out) = make_uint2(words[0], words[1]);
    } else {
      *reinterpret_cast<device::Uint<Bits>*>(out) = static_cast<device::Uint<Bits>>(words[0]);
    }
  } else {
#pragma unroll
    for (int k = 0; k < Bits; ++k)
      if (8 * k < count * Bits) out[k] = static_cast<uint8_t>(words[k / 4] >> (k % 4 * 8));
  }
}

template <int Bits, typename T>
__global__ void __launch_bounds__(kThreads)
    widen(const uint8_t* x, T* y, int64_t n, Float8Format format, bool is_signed, bool aligned) {
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kItems;
  if (first >= n) return;
  const int count = static_cast<int>(min(static_cast<int64_t>(kItems), n - first));
  const uint8_t* in = x + first / 8 * Bits;
  uint32_t words[Bits == 8 ? 2 : 1] = {};
  if (aligned && count == kItems) {
    if constexpr (Bits == 8) {
      const uint2 both = *reinterpret_cast<const uint2*>(in);
      words[0] = both.x, words[1] = both.y;
    } else {
      words[0] = *reinterpret_cast<const device::Uint<Bits>*>(in);
    }
  } else {
#pragma unroll
    for (int k = 0; k < Bits; ++k)
      if (8 * k < count * Bits) words[k / 4] |= static_cast<uint32_t>(in[k]) << (k % 4 * 8);
  }
  alignas(16) T values[kItems];
#pragma unroll
  for (int k = 0; k < kItems; ++k)
    values[k] = decode<Bits, T>(words[k * Bits / 32] >> (k * Bits % 32) & ((1u << Bits) - 1), format, is_signed);
  if (aligned && count == kItems) {
#pragma unroll
    for (int k = 0; k < kItems; k += kWidth<T>)
      device::store<T, kWidth<T>>(y + first + k, reinterpret_cast<device::Vec<T, kWidth<T>>&>(values[k]));
  } else {
#pragma unroll
    for (int k = 0; k < kItems; ++k)
      if (k < count) y[first + k] = values[k];
  }
}

template <int Bits, typename T>
cudaError_t launch(const NarrowCastParams& p, cudaStream_t stream) {
  const bool narrows = narrow_bits(p.to) != 0;
  Float8Format format;
  if (Bits == 8 && !device::float8_format(narrows ? p.to : p.from, &format)) return cudaErrorInvalidValue;
  const bool aligned = ((reinterpret_cast<uintptr_t>(p.x) | reinterpret_cast<uintptr_t>(p.y)) & 15) == 0;
  const unsigned blocks = device::blocks_for((p.n + kItems - 1) / kItems, kThreads);
  if (narrows) {
    narrow<Bits, T><<<blocks, kThreads, 0, stream>>>(static_cast<const T*>(p.x), static_cast<uint8_t*>(p.y), p.n,
                                                     format, p.saturate, aligned);
  } else {
    const bool is_signed = p.from == DType::kI4 || p.from == DType::kI2;
    widen<Bits, T><<<blocks, kThreads, 0, stream>>>(static_cast<const uint8_t*>(p.x), static_cast<T*>(p.y), p.n, format,
                                                    is_signed, aligned);
  }
  return cudaGetLastError();
}

template <int Bits>
cudaError_t by_wide_type(const NarrowCastParams& p, cudaStream_t stream) {
  switch (narrow_bits(p.to) ? p.from : p.to) {
    case DType::kF32:
      return launch<Bits, float>(p, stream);
    case DType::kF16:
      return launch<Bits, __half>(p, stream);
    case DType::kBF16:
      return launch<Bits, __nv_bfloat16>(p, stream);
    case DType::kI8:
      return launch<Bits, int8_t>(p, stream);
    case DType::kU8:
      return launch<Bits, uint8_t>(p, stream);
    case DType::kI32:
      return launch<Bits, int32_t>(p, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t launch_narrow_cast(const NarrowCastParams& p, cudaStream_t stream) {
  if (p.n == 0) return cudaSuccess;
  switch (narrow_bits(p.from) + narrow_bits(p.to)) {  // one of them is 0
    case 8:
      return by_wide_type<8>(p, stream);
    case 4:
      return by_wide_type<4>(p, stream);
    case 2:
      return by_wide_type<2>(p, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace cuvil
