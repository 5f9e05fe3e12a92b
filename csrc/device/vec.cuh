// Aligned vectors of elements, and conversions between storage types and the types that kernels compute in.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace cuvil::device {

// N elements that move in one access; sizeof(T) * N is 1, 2, 4, 8 or 16 bytes.
template <typename T, int N>
struct alignas(sizeof(T) * N) Vec {
  T v[N];
  __device__ __forceinline__ T& operator[](int i) { return v[i]; }
  __device__ __forceinline__ const T& operator[](int i) const { return v[i]; }
};

// Elements of T in 16 bytes.
template <typename T>
constexpr int kVec16 = 16 / static_cast<int>(sizeof(T));

template <typename T, int N>
__device__ __forceinline__ Vec<T, N> load(const T* p) {
  return *reinterpret_cast<const Vec<T, N>*>(p);
}

template <typename T, int N>
__device__ __forceinline__ void store(T* p, const Vec<T, N>& v) {
  *reinterpret_cast<Vec<T, N>*>(p) = v;
}

// Unsigned integer of a byte count: kernels that only move data are instantiated once a size, not once a type.
template <int Bytes>
struct UintOf;
template <>
struct UintOf<1> {
  using type = uint8_t;
};
template <>
struct UintOf<2> {
  using type = uint16_t;
};
template <>
struct UintOf<4> {
  using type = uint32_t;
};
template <>
struct UintOf<8> {
  using type = uint2;  // two words: 64-bit arithmetic is never needed on moved data, and the alignment stays 8
};
template <>
struct UintOf<16> {
  using type = uint4;
};
template <int Bytes>
using Uint = typename UintOf<Bytes>::type;

// The type that sums and functions of T are computed in.
template <typename T>
struct ComputeOf {
  using type = T;
};
template <>
struct ComputeOf<__half> {
  using type = float;
};
template <>
struct ComputeOf<__nv_bfloat16> {
  using type = float;
};
template <typename T>
using Compute = typename ComputeOf<T>::type;

template <typename T>
__device__ __forceinline__ Compute<T> to_compute(T x) {
  return x;
}
template <>
__device__ __forceinline__ float to_compute<__half>(__half x) {
  return __half2float(x);
}
template <>
__device__ __forceinline__ float to_compute<__nv_bfloat16>(__nv_bfloat16 x) {
  return __bfloat162float(x);
}

// Rounds to nearest even where T is narrower.
template <typename T>
__device__ __forceinline__ T from_compute(Compute<T> x) {
  return x;
}
template <>
__device__ __forceinline__ __half from_compute<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ __forceinline__ __nv_bfloat16 from_compute<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

}  // namespace cuvil::device
