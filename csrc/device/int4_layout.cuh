// How weights of 4 and 8 bits lie in memory: as models store them, and as the kernels want them.
//
// Packed codes are units of 32 rows (columns of the product) by 32 places along the sum, the units of 32 rows one after
// the other along the sum. Within a unit a lane of a warp has what it needs as operand A of four mma.sync m16n8k16, two
// tiles of 16 rows by two steps, in one vector of 16 bytes (4 bits) or in one for each tile (8 bits). The four warps of
// a warpgroup, with a unit each, have operand A of wgmma m64nNk16 in the same way. The sum keeps its order, so that the
// other operand may be read as it is.
//
// Scales and zero points are rows of one group each, 32 rows' values together in the order of the lanes.
#pragma once

#include <cstdint>

#include "device/anywhere.h"

namespace cuvil::device {

constexpr int kUnitRows = 32, kUnitDepth = 32;
// Places along the sum of one instruction: the least size of a group.
constexpr int kStepDepth = 16;

// Bytes of a unit's codes.
constexpr int unit_bytes(int bits) { return kUnitRows * kUnitDepth * bits / 8; }

// Codes of 2, 4 or 8 bits of a matrix, the first in the lowest bits of a byte. Strides in codes.
struct CodeTable {
  const uint8_t* data = nullptr;
  int bits = 4;
  int flip = 0;  // the sign bit of signed codes: code ^ flip is the code plus half the range
  int64_t stride_row = 0, stride_depth = 0;
  int64_t first = 0;  // the matrix's first code

  CUVIL_ANYWHERE int at(int64_t row, int64_t depth) const {
    const int64_t bit = (first + row * stride_row + depth * stride_depth) * bits;
    return (data[bit >> 3] >> (bit & 7) & ((1 << bits) - 1)) ^ flip;
  }
};

// Row and place of one of the two halves of operand register r (0 to 3) of a lane, in a unit.
struct UnitPlace {
  int row, depth;
};
CUVIL_ANYWHERE UnitPlace unit_place(int lane, int tile, int step, int r, int half) {
  return {16 * tile + lane / 4 + r % 2 * 8, kStepDepth * step + r / 2 * 8 + lane % 4 * 2 + half};
}

// Where that code lies: word `word` of vector `plane`, from bit `shift` on. The two halves of a 4-bit register are 16
// bits apart, so that a mask and an exponent turn them into a pair of numbers.
struct CodePlace {
  int plane, word, shift;
};
CUVIL_ANYWHERE CodePlace code_place(int bits, int tile, int step, int r, int half) {
  if (bits == 4) return {0, 2 * tile + step, 4 * r + 16 * half};
  return {tile, 2 * step + r / 2, 16 * (r % 2) + 8 * half};
}

// Where the value of a row lies among the 32 of a unit's rows.
CUVIL_ANYWHERE int group_place(int row) { return row % 8 * 4 + row / 8; }

// Word `word` of vector `plane` of a lane. `order` gives the matrix's place for each packed one, below 0 for none; null
// where they are the same.
CUVIL_ANYWHERE uint32_t pack_word(const CodeTable& codes, int64_t rows, int64_t depth, const int32_t* order, int bits,
                                  int64_t first_row, int64_t first_depth, int lane, int plane, int word) {
  uint32_t packed = 0;
  for (int i = 0; i < 16; ++i) {
    const int step = i / 8, r = i / 2 % 4, half = i % 2;
    for (int tile = 0; tile < 2; ++tile) {
      const CodePlace at = code_place(bits, tile, step, r, half);
      if (at.plane != plane || at.word != word) continue;
      const UnitPlace p = unit_place(lane, tile, step, r, half);
      const int64_t row = first_row + p.row, packed_depth = first_depth + p.depth;
      if (row >= rows || packed_depth >= depth) continue;
      const int64_t place = order ? order[packed_depth] : packed_depth;
      if (place >= 0) packed |= static_cast<uint32_t>(codes.at(row, place)) << at.shift;
    }
  }
  return packed;
}

}  // namespace cuvil::device
