// Rotary position embedding: pairs of a head's elements are rotated by the angle of their token's position.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"

namespace cuvil {

// With c = cos[p, i], s = sin[p, i] and i in [0, rotary / 2), the pair (a, b) becomes (a c - b s, a s + b c), in fp32.
// Pair i is (x[i], x[i + rotary / 2]), or (x[2i], x[2i + 1]) when interleaved. Elements from `rotary` on are copied.
// The row p of cos and sin is positions[b, s]; positions[0] + s when one_position; b * seq + s without positions.
struct RotaryParams {
  const void* x = nullptr;  // [batch, seq, heads, head_size], or [batch, heads, seq, head_size] when heads_first
  const void* cos = nullptr;
  const void* sin = nullptr;  // both [cache_rows, rotary / 2]
  const int64_t* positions = nullptr;
  void* y = nullptr;                // shaped as x; may be x
  DType dtype = DType::kUndefined;  // of x, cos, sin and y: f32, f16 or bf16
  bool heads_first = false, interleaved = false, one_position = false;
  int64_t batch = 0, seq = 0, heads = 0, head_size = 0;
  int64_t rotary = 0;  // even, at most head_size
  int64_t cache_rows = 0;
  int* out_of_range = nullptr;  // set to 1 where a position is outside the cache, whose row is then left as it is
};

// cudaErrorInvalidValue for another dtype.
cudaError_t launch_rotary(const RotaryParams& p, cudaStream_t stream);

}  // namespace cuvil
