// Shares out the work of a matrix product evenly: tiles of the result, each a sum of the same number of steps, are one
// long row of steps, and every block takes an equal run of it. A tile that several blocks touch is summed afterwards.
#pragma once

#include <cstdint>

#include "device/anywhere.h"

namespace cuvil::device {

struct TileSchedule {
  int tiles = 0, steps = 0;  // steps of each tile
  int blocks = 0;            // in [1, tiles * steps]

  CUVIL_ANYWHERE int64_t total() const { return int64_t{tiles} * steps; }
  // Block b does steps [begin(b), begin(b + 1)).
  CUVIL_ANYWHERE int64_t begin(int block) const { return block * total() / blocks; }
  // The block that does step s.
  CUVIL_ANYWHERE int owner(int64_t s) const { return static_cast<int>(((s + 1) * blocks - 1) / total()); }
  // The blocks that share a tile.
  CUVIL_ANYWHERE int first_block(int tile) const { return owner(int64_t{tile} * steps); }
  CUVIL_ANYWHERE int last_block(int tile) const { return owner(int64_t{tile + 1} * steps - 1); }
  // A block has at most two tiles in part, its first and its last: the place of its part of `tile` among the 2 * blocks
  // places.
  CUVIL_ANYWHERE int slot(int block, int tile) const { return 2 * block + (begin(block) / steps == tile ? 0 : 1); }
};

}  // namespace cuvil::device
