// Rotary position embedding of merged heads: pairs of elements turned by the angles of their position.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"

namespace cuvil {

// Computed in fp32 for 16-bit types, and rounded once.
struct RotaryHalfParams {
  const void* x = nullptr;    // [rows, heads, head_size]; may be y
  const void* cos = nullptr;  // factors of position (batch, s) start at batch * batch_stride + s * row_stride
  const void* sin = nullptr;
  void* y = nullptr;                 // as x
  DType dtype = DType::kUndefined;   // of x and y: any floating type
  DType factor_dtype = DType::kF32;  // of cos and sin: dtype or f32
  int64_t rows = 0;                  // batch * s
  int64_t s = 0;
  int64_t batch_stride = 0, row_stride = 0;  // elements of cos and sin; 0 where one serves all
  int heads = 0;
  int rotated_heads = 0;  // the first so many are rotated, the others copied
  int head_size = 0;
  int rotary_dim = 0;        // even: what is rotated of a head; the rest is copied
  bool interleaved = false;  // pairs are neighbours; else rotary_dim / 2 apart
  bool per_pair = false;     // one factor a pair; else one an element, [.., rotary_dim]
};

// cudaErrorInvalidValue for other types, and for an odd head_size with interleaved pairs.
cudaError_t launch_rotary_half(const RotaryHalfParams& p, cudaStream_t stream);

}  // namespace cuvil
