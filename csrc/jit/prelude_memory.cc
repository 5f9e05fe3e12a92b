#include "jit/prelude.h"

namespace cuvil::jit {

const char kPreludeMemory[] = R"cuda(
#define FN static __device__ __forceinline__
typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;
struct f16 { u16 bits; };
struct bf16 { u16 bits; };
struct b8 { u8 bits; };

// Storage to computation: exact.
template <class T> FN T up(T x) { return x; }
FN float up(f16 x) { float r; asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x.bits)); return r; }
FN float up(bf16 x) { return __uint_as_float(u32(x.bits) << 16); }
FN bool up(b8 x) { return x.bits != 0; }

// Computation to storage: rounds to nearest, ties to even.
template <class S> struct Down { template <class T> FN S from(T x) { return S(x); } };
template <> struct Down<f16> {
  FN f16 from(float x) { f16 r; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.bits) : "f"(x)); return r; }
};
template <> struct Down<bf16> {
  FN bf16 from(float x) { bf16 r; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.bits) : "f"(x)); return r; }
};
template <> struct Down<b8> { FN b8 from(bool x) { b8 r; r.bits = x; return r; } };
template <class S, class T> FN S down(T x) { return Down<S>::from(x); }

// The nearest value of S, still in float.
template <class S> FN float rounded(float x) { return up(down<S>(x)); }

template <class T, int N> struct alignas(sizeof(T) * N) Vec { T e[N]; };

template <int BYTES> struct Word;
template <> struct Word<1> { typedef u8 type; };
template <> struct Word<2> { typedef u16 type; };
template <> struct Word<4> { typedef u32 type; };
template <> struct Word<8> { typedef uint2 type; };
template <> struct Word<16> { typedef uint4 type; };

template <bool STREAM, class T, int N> FN void load(Vec<T, N>& to, const T* from) {
  typedef typename Word<sizeof(T) * N>::type W;
  const W w = STREAM ? __ldcs(reinterpret_cast<const W*>(from)) : *reinterpret_cast<const W*>(from);
  memcpy(&to, &w, sizeof w);
}
template <bool STREAM, class T, int N> FN void store(T* to, const Vec<T, N>& from) {
  typedef typename Word<sizeof(T) * N>::type W;
  W w;
  memcpy(&w, &from, sizeof w);
  if (STREAM) __stcs(reinterpret_cast<W*>(to), w);
  else *reinterpret_cast<W*>(to) = w;
}
// The elements below `left` only.
template <class I, class T, int N> FN void load_part(Vec<T, N>& to, const T* from, I left) {
#pragma unroll
  for (int v = 0; v < N; ++v)
    if (v < left) to.e[v] = from[v];
}
template <class I, class T, int N> FN void store_part(T* to, const Vec<T, N>& from, I left) {
#pragma unroll
  for (int v = 0; v < N; ++v)
    if (v < left) to[v] = from.e[v];
}

// Quotient by an extent; for 32 bits by multiplication, valid below 2^31.
FN u32 quotient(u32 x, u32 extent, u32 multiplier, u32 shift) { return (__umulhi(x, multiplier) + x) >> shift; }
FN u64 quotient(u64 x, u64 extent, u64 multiplier, u64 shift) { return x / extent; }
)cuda";

}  // namespace cuvil::jit
