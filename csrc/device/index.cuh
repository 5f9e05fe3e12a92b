// Index arithmetic shared by kernels: division by a run-time constant, and offsets of strided views.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace cuvil::device {

// Quotient and remainder by a divisor fixed on the host: a multiplication and a shift instead of a division. Exact for
// dividends below 2^31 and divisors in [1, 2^31).
struct FastDiv32 {
  using Index = uint32_t;
  uint32_t divisor = 1;
  uint32_t magic = 0;
  uint32_t shift = 0;

  FastDiv32() = default;
  __host__ __device__ explicit FastDiv32(uint32_t d) : divisor(d) {
    // shift = ceil(log2(d)); magic = floor(2^32 * (2^shift - d) / d) + 1; q = (mulhi(n, magic) + n) >> shift.
    while ((uint64_t{1} << shift) < d) ++shift;
    magic = static_cast<uint32_t>(((uint64_t{1} << 32) * ((uint64_t{1} << shift) - d)) / d + 1);
  }
  __host__ __device__ __forceinline__ uint32_t div(uint32_t n) const {
#ifdef __CUDA_ARCH__
    const uint32_t high = __umulhi(n, magic);
#else
    const uint32_t high = static_cast<uint32_t>((uint64_t{n} * magic) >> 32);
#endif
    return (high + n) >> shift;  // n < 2^31 keeps the sum below 2^32
  }
  __host__ __device__ __forceinline__ void divmod(uint32_t n, uint32_t& q, uint32_t& r) const {
    q = div(n);
    r = n - q * divisor;
  }
};

// The same interface for tensors above 2^31 elements.
struct Div64 {
  using Index = uint64_t;
  uint64_t divisor = 1;

  Div64() = default;
  __host__ __device__ explicit Div64(uint64_t d) : divisor(d) {}
  __host__ __device__ __forceinline__ uint64_t div(uint64_t n) const { return n / divisor; }
  __host__ __device__ __forceinline__ void divmod(uint64_t n, uint64_t& q, uint64_t& r) const {
    q = n / divisor;
    r = n - q * divisor;
  }
};

// n / d of non-negative numbers, without a 64-bit division where both are short.
__device__ __forceinline__ int64_t quotient(int64_t n, int64_t d) {
  if (((n | d) >> 32) == 0) return static_cast<uint32_t>(n) / static_cast<uint32_t>(d);
  return n / d;
}

// A tensor of int64 (wide) or int32 indices.
__device__ __forceinline__ int64_t read_index(const void* indices, bool wide, int64_t i) {
  return wide ? static_cast<const int64_t*>(indices)[i] : static_cast<const int32_t*>(indices)[i];
}

// An index that counts from the end when negative, to [0, extent); -1 after raising the flag when it is outside.
__device__ __forceinline__ int64_t resolve_index(int64_t index, int64_t extent, int* out_of_range) {
  if (index < 0) index += extent;
  if (index >= 0 && index < extent) return index;
  if (out_of_range) *out_of_range = 1;
  return -1;
}

// Largest element count that 32-bit indices address.
constexpr int64_t kMaxIndex32 = (int64_t{1} << 31) - 1;

// Blocks for n items at `threads` a block.
inline unsigned blocks_for(int64_t n, int threads) { return static_cast<unsigned>((n + threads - 1) / threads); }

}  // namespace cuvil::device
