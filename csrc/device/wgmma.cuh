// Matrix products of a warpgroup (wgmma, sm_90a) with operand A in registers, and operand B in shared memory: rows of
// 64 places (128 bytes) with the swizzle of 128 bytes, as copies by tensor map leave them.
//
// Lane l of warp w of the four has A and D as mma.sync m16n8k16 (device/tensor_core.cuh) for rows 16w to 16w + 15.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace cuvil::device {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Of eight rows and more that begin at `shared`, a multiple of 1024; 16 places further on, add 2.
__device__ __forceinline__ uint64_t wgmma_operand(uint32_t shared) {
  constexpr uint64_t kEightRows = 1024 >> 4, kSwizzle128 = 1;
  return (shared & 0x3FFFF) >> 4 | uint64_t{1} << 16 | kEightRows << 32 | kSwizzle128 << 62;
}

// Before the first of several products, and wherever registers of theirs have been written since.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }
// Until at most `Pending` of the newest groups are unfinished.
template <int Pending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(Pending) : "memory");
}

// Between products and other uses of an element of D: the compiler moves none of these across it.
__device__ __forceinline__ void wgmma_hold(float& d) { asm volatile("" : "+f"(d)::"memory"); }

// d += A * B, N columns.
template <int N>
struct Wgmma;

#define CUVIL_QUAD(x) "+f"(x[0]), "+f"(x[1]), "+f"(x[2]), "+f"(x[3])
#define CUVIL_WGMMA_ASM(shape, type, d, operands, ...)                                                             \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\nwgmma.mma_async.sync.aligned." shape ".f32." type "." type \
               " {" d "}, " operands ", p, 1, 1, 0;\n}\n"                                                          \
               : __VA_ARGS__                                                                                       \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define CUVIL_WGMMA(shape, d, operands, ...)                 \
  if constexpr (std::is_same_v<T, __half>)                   \
    CUVIL_WGMMA_ASM(shape, "f16", d, operands, __VA_ARGS__); \
  else                                                       \
    CUVIL_WGMMA_ASM(shape, "bf16", d, operands, __VA_ARGS__)

template <>
struct Wgmma<32> {
  template <typename T>
  static __device__ __forceinline__ void run(float (&d)[4][4], const uint32_t (&a)[4], uint64_t b) {
    CUVIL_WGMMA("m64n32k16", "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15",
                "{%16, %17, %18, %19}, %20", CUVIL_QUAD(d[0]), CUVIL_QUAD(d[1]), CUVIL_QUAD(d[2]), CUVIL_QUAD(d[3]));
  }
};

template <>
struct Wgmma<64> {
  template <typename T>
  static __device__ __forceinline__ void run(float (&d)[8][4], const uint32_t (&a)[4], uint64_t b) {
    CUVIL_WGMMA("m64n64k16",
                "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
                "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31",
                "{%32, %33, %34, %35}, %36", CUVIL_QUAD(d[0]), CUVIL_QUAD(d[1]), CUVIL_QUAD(d[2]), CUVIL_QUAD(d[3]),
                CUVIL_QUAD(d[4]), CUVIL_QUAD(d[5]), CUVIL_QUAD(d[6]), CUVIL_QUAD(d[7]));
  }
};

template <>
struct Wgmma<128> {
  template <typename T>
  static __device__ __forceinline__ void run(float (&d)[16][4], const uint32_t (&a)[4], uint64_t b) {
    CUVIL_WGMMA("m64n128k16",
                "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
                "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
                "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, "
                "%59, %60, %61, %62, %63",
                "{%64, %65, %66, %67}, %68", CUVIL_QUAD(d[0]), CUVIL_QUAD(d[1]), CUVIL_QUAD(d[2]), CUVIL_QUAD(d[3]),
                CUVIL_QUAD(d[4]), CUVIL_QUAD(d[5]), CUVIL_QUAD(d[6]), CUVIL_QUAD(d[7]), CUVIL_QUAD(d[8]),
                CUVIL_QUAD(d[9]), CUVIL_QUAD(d[10]), CUVIL_QUAD(d[11]), CUVIL_QUAD(d[12]), CUVIL_QUAD(d[13]),
                CUVIL_QUAD(d[14]), CUVIL_QUAD(d[15]));
  }
};

#undef CUVIL_WGMMA
#undef CUVIL_WGMMA_ASM
#undef CUVIL_QUAD

#endif

}  // namespace cuvil::device
