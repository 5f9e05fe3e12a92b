// Shares out the work of a matrix product evenly: tiles of the result, each a sum of the same number of steps, are one
// long row of steps, and every block takes an equal run of it. A tile that several blocks touch is summed afterwards.
#pragma once

#include <cstdint>

#include "device/anywhere.h"

namespace cuvil::device {

struct TileSchedule {
  int tiles, steps;  // steps of each tile
  int blocks;        // in [1, total()]
  // The first `longer` blocks do `each` + 1 steps, the others `each`.
  int each, longer;

  // tiles * steps is below 2^31.
  TileSchedule(int tiles_, int steps_, int blocks_)
      : tiles(tiles_),
        steps(steps_),
        blocks(blocks_),
        each(tiles_ * steps_ / blocks_),
        longer(tiles_ * steps_ % blocks_) {}

  CUVIL_ANYWHERE int total() const { return tiles * steps; }
  // Block b does steps [begin(b), begin(b + 1)).
  CUVIL_ANYWHERE int begin(int block) const { return block * each + (block < longer ? block : longer); }
  // The block that does step s.
  CUVIL_ANYWHERE int owner(int s) const {
    const int in_longer = longer * (each + 1);
    return s < in_longer ? s / (each + 1) : longer + (s - in_longer) / each;
  }
  // The blocks that share a tile.
  CUVIL_ANYWHERE int first_block(int tile) const { return owner(tile * steps); }
  CUVIL_ANYWHERE int last_block(int tile) const { return owner((tile + 1) * steps - 1); }
  // A block has at most two tiles in part, its first and its last: the place of its part of `tile` among the 2 * blocks
  // places.
  CUVIL_ANYWHERE int slot(int block, int tile) const { return 2 * block + (begin(block) < tile * steps ? 1 : 0); }
};

}  // namespace cuvil::device
