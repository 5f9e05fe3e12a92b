// Bitwise operations that the compiler does not find by itself.
#pragma once

#include <cstdint>

namespace cuvil::device {

// (word & mask) | bits in one instruction. With both constants known the compiler would split it in two.
__device__ __forceinline__ uint32_t and_or(uint32_t word, uint32_t mask, uint32_t bits) {
  uint32_t r;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(r) : "r"(word), "r"(mask), "r"(bits));
  return r;
}

}  // namespace cuvil::device
