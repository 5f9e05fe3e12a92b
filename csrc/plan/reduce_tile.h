// The block shape of a strided reduction; shared by plan and kernel.
#pragma once

#include <algorithm>
#include <cstdint>

namespace cuvil {

constexpr int64_t kReduceThreads = 256;

// Of the 256 threads of a block, how many lie side by side on `groups` vectors of outputs (a power of two); the others
// share the reduced run. `blocks_apart` is the number of blocks that `outer` and the parts already give.
inline int64_t reduce_tile_columns(int64_t blocks_apart, int64_t reduce, int64_t groups) {
  // Slices of a run cost a fold at the end: worth it for a long run, and wherever the blocks alone would not fill a
  // device. 32 columns are a 512-byte row.
  constexpr int64_t kManyBlocks = 1024;
  int64_t most = kReduceThreads;
  if (reduce >= 64 || blocks_apart * ((groups + most - 1) / most) < kManyBlocks)
    while (most > 32 && kReduceThreads / most * 2 <= reduce) most /= 2;
  int64_t columns = 1;
  while (columns < groups && columns < most) columns *= 2;
  return columns;
}

}  // namespace cuvil
