// Codes of 4 and 8 bits to operand A of mma.sync, exactly as DequantizeLinear rounds them: (code - zero) is exact in
// the type, and one fused multiplication and addition rounds once.
//
// No conversion from integer to float: a mask and the exponent of a power of two p make p + code, whose difference to
// p + zero is exact.
#pragma once

#include <type_traits>

#include "device/bits.cuh"
#include "device/int4_layout.cuh"
#include "device/tensor_core.cuh"
#include "device/vec.cuh"

namespace cuvil::device {

__device__ __forceinline__ __half2 as_half2(uint32_t x) { return *reinterpret_cast<const __half2*>(&x); }
__device__ __forceinline__ __nv_bfloat162 as_bfloat2(uint32_t x) {
  return *reinterpret_cast<const __nv_bfloat162*>(&x);
}
template <typename T2>
__device__ __forceinline__ uint32_t as_word(T2 x) {
  static_assert(sizeof(T2) == 4);
  return *reinterpret_cast<const uint32_t*>(&x);
}

// The same 16-bit value in both halves: half `i` of a word.
__device__ __forceinline__ uint32_t twice(uint32_t word, int i) { return __byte_perm(word, 0, i ? 0x3232 : 0x1010); }

// 16 + code, exactly: for products that are scaled, and freed of the zero point, afterwards. The four bits of a code
// lie at the top of the mantissa of a number from 16 to 31, so that little is lost when 16 times the sum of the other
// operand is taken off again.
template <typename T>
__device__ __forceinline__ void decode_raised(uint32_t (&a)[4], uint32_t word) {
  constexpr bool kHalf = std::is_same_v<T, __half>;
  constexpr int kPlace = kHalf ? 6 : 3;  // of the lowest bit of a code
  constexpr uint32_t kMask = 0x000F000Fu << kPlace, kSixteen = kHalf ? 0x4C004C00u : 0x41804180u;
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const uint32_t moved = 4 * r > kPlace ? word >> (4 * r - kPlace) : word << (kPlace - 4 * r);
    a[r] = and_or(moved, kMask, kSixteen);
  }
}

// What a lane's four rows g + 8j need: values of a group, from where group_place put them.
template <typename T, int Bits>
struct Decoder;

template <typename T>
struct PackedRows {
  uint32_t scale[4], offset[4];

  __device__ __forceinline__ void load(const T* scales, const T* offsets) {
    const uint2 s = *reinterpret_cast<const uint2*>(scales);
    uint2 o = make_uint2(0, 0);
    if (offsets) o = *reinterpret_cast<const uint2*>(offsets);
    scale[0] = twice(s.x, 0), scale[1] = twice(s.x, 1), scale[2] = twice(s.y, 0), scale[3] = twice(s.y, 1);
    offset[0] = twice(o.x, 0), offset[1] = twice(o.x, 1), offset[2] = twice(o.y, 0), offset[3] = twice(o.y, 1);
  }
};

// Codes of 4 bits less their zero points, which are exact: for products whose sums are scaled afterwards.
template <typename T>
struct Integers;

template <>
struct Integers<__half> {
  uint32_t zero[4];  // even rows: 1024 + zero; odd ones: -(64 + zero)

  __device__ __forceinline__ void load(uint32_t zeros) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      zero[j] = __byte_perm(zeros, 0x64, 0x4040 | j * 0x0101);
      if (j % 2) zero[j] = as_word(__hsub2(as_half2(0x63806380u), as_half2(zero[j])));  // 960 - (1024 + zero)
    }
  }
  // Register r of the word of a tile and step.
  __device__ __forceinline__ __half2 pair(uint32_t word, int tile, int r) const {
    const int row = 2 * tile + r % 2;
    word >>= r / 2 * 8;
    if (r % 2 == 0) return __hsub2(as_half2(and_or(word, 0x000F000Fu, 0x64006400u)), as_half2(zero[row]));
    // 1024 + 16 code, over 16
    return __hfma2(as_half2(and_or(word, 0x00F000F0u, 0x64006400u)), as_half2(0x2C002C00u), as_half2(zero[row]));
  }
};

template <>
struct Integers<__nv_bfloat16> {
  uint32_t zero[4];  // 128 + zero

  __device__ __forceinline__ void load(uint32_t zeros) {
#pragma unroll
    for (int j = 0; j < 4; ++j) zero[j] = __byte_perm(zeros, 0x43, 0x4040 | j * 0x0101);
  }
  __device__ __forceinline__ __nv_bfloat162 pair(uint32_t word, int tile, int r) const {
    const uint32_t raised = and_or(word >> (4 * r), 0x000F000Fu, 0x43004300u);
    return __hsub2(as_bfloat2(raised), as_bfloat2(zero[2 * tile + r % 2]));
  }
};

__device__ __forceinline__ __half2 as_pair(uint32_t x, __half2) { return as_half2(x); }
__device__ __forceinline__ __nv_bfloat162 as_pair(uint32_t x, __nv_bfloat162) { return as_bfloat2(x); }

// `Offsets`: false where there are none, which saves their registers.
template <typename T>
struct Decoder<T, 4> {
  PackedRows<T> rows;
  Integers<T> integers;

  __device__ __forceinline__ void load(const T* scales, uint32_t zeros, const T* offsets) {
    rows.load(scales, offsets);
    integers.load(zeros);
  }
  template <bool Offsets = true>
  __device__ __forceinline__ void decode(uint32_t (&a)[4], const uint32_t (&words)[4], int tile, int step) const {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int row = 2 * tile + r % 2;
      const auto x = integers.pair(words[2 * tile + step], tile, r);
      const auto scale = as_pair(rows.scale[row], x);
      if constexpr (Offsets)
        a[r] = as_word(__hfma2(x, scale, as_pair(rows.offset[row], x)));
      else
        a[r] = as_word(__hmul2(x, scale));
    }
  }
};

template <>
struct Decoder<__half, 8> {
  PackedRows<__half> rows;
  uint32_t zero[4];  // 1024 + zero

  __device__ __forceinline__ void load(const __half* scales, uint32_t zeros, const __half* offsets) {
    rows.load(scales, offsets);
#pragma unroll
    for (int j = 0; j < 4; ++j) zero[j] = __byte_perm(zeros, 0x64, 0x4040 | j * 0x0101);
  }
  __device__ __forceinline__ void decode(uint32_t (&a)[4], const uint32_t (&words)[4], int tile, int step) const {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int row = 2 * tile + r % 2;
      const uint32_t x = __byte_perm(words[2 * step + r / 2], 0x64, r % 2 ? 0x4342 : 0x4140);
      a[r] = as_word(
          __hfma2(__hsub2(as_half2(x), as_half2(zero[row])), as_half2(rows.scale[row]), as_half2(rows.offset[row])));
    }
  }
};

// A difference of two bytes is no bfloat16 number: these go through float32.
template <>
struct Decoder<__nv_bfloat16, 8> {
  float scale[4], offset[4], zero[4];  // zero: 2^23 + zero

  __device__ __forceinline__ void load(const __nv_bfloat16* scales, uint32_t zeros, const __nv_bfloat16* offsets) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      scale[j] = to_compute(scales[j]);
      offset[j] = offsets ? to_compute(offsets[j]) : 0.f;
      zero[j] = __uint_as_float(__byte_perm(zeros, 0x4B000000u, 0x7440 | j));
    }
  }
  __device__ __forceinline__ void decode(uint32_t (&a)[4], const uint32_t (&words)[4], int tile, int step) const {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int row = 2 * tile + r % 2;
      const uint32_t word = words[2 * step + r / 2];
      float x[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float code = __uint_as_float(__byte_perm(word, 0x4B000000u, 0x7440 | (r % 2 * 2 + half)));
        x[half] = fmaf(code - zero[row], scale[row], offset[row]);
      }
      a[r] = pack_pair<__nv_bfloat16>(x[0], x[1]);
    }
  }
};

}  // namespace cuvil::device
