// Views of a tensor: the description that Transpose, Slice, Expand, Tile, DepthToSpace share. Host code, no CUDA.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/dims.h"

namespace cuvil::plan {

// Enough for Tile, which splits every dimension in two.
constexpr int kMaxViewRank = 2 * kMaxRank;

// A contiguous output of `extent`, whose element at index i is the input's element at offset + sum(i * stride).
// Strides are in elements, and may be zero (broadcast) or negative (reversed).
struct View {
  int rank = 0;
  std::array<int64_t, kMaxViewRank> extent{};
  std::array<int64_t, kMaxViewRank> stride{};
  int64_t offset = 0;

  void push_back(int64_t e, int64_t s) {
    require(rank < kMaxViewRank, "a view of rank above ", kMaxViewRank, " is not supported");
    extent[static_cast<size_t>(rank)] = e;
    stride[static_cast<size_t>(rank++)] = s;
  }
  int64_t size() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= extent[static_cast<size_t>(i)];
    return n;
  }
};

// Element strides of a contiguous tensor.
Dims contiguous_strides(const Dims& shape);

// The same view with extents of 1 dropped and neighbours merged that are one run of memory. Keeps rank >= 1.
View collapse(const View& view);

// True for a collapsed view that is the input from `offset` on, unchanged.
bool is_contiguous(const View& view);

// Groups elements of `size` bytes into wider ones, up to 16 bytes, as far as extents, strides and the two addresses
// allow. Rewrites `view` in units of the new size, which it returns.
int widen(View* view, int size, uintptr_t input, uintptr_t output);

// The dimension with stride 1 when it is not the innermost one: reading along it and writing along the innermost
// needs a transpose through shared memory. -1 when there is none.
int transposed_dim(const View& view);

}  // namespace cuvil::plan
