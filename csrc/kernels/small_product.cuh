// D = act(alpha * A op(B) + bias + beta * C) for products of few rows, where a library's tiles leave most of the card
// idle: small tiles, and up to eight blocks (a cluster, sm_90) that share the sum over K of one tile.
#pragma once

#include <cuda_runtime_api.h>

#include "core/dtype.h"
#include "device/activation.h"

namespace cuvil {

struct SmallProductParams {
  const void* a = nullptr;     // [m, k]
  const void* b = nullptr;     // [k, n], or [n, k] with trans_b
  const void* bias = nullptr;  // [n] or null
  const void* c = nullptr;     // [m, n] or null; may be d
  void* d = nullptr;           // [m, n]
  DType dtype = DType::kF16;   // of all: f16 or bf16
  int64_t m = 0, n = 0, k = 0;
  bool trans_b = false;
  float alpha = 1, beta = 1;
  ActivationParams activation;
  // B is a constant that no kernel of this stream writes: its first tiles are fetched before the kernel in front ended.
  bool b_constant = false;
};

// How a product is cut up.
struct ProductCut {
  int rows = 64;  // of a tile: 32 or 64; a tile has 64 columns
  int split = 1;  // blocks that share the sum of a tile: 1, 2, 4 or 8 (sm_90)
};

// Needs rows and pointers that are 16-byte vectors (n and k multiples of 8, addresses of 16; the bias may lie
// anywhere), m, n, k > 0.
bool small_product_serves(const SmallProductParams& p);

cudaError_t launch_small_product(const SmallProductParams& p, ProductCut cut, cudaStream_t stream);

}  // namespace cuvil
