// Pad normalised: cropping taken out, neighbours merged, elements grouped. Host code, no CUDA.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/dims.h"
#include "plan/pad_mode.h"

namespace cuvil::plan {

PadMode pad_mode(const std::string& name);

// Per dimension: output index o is the input's o - begin, within [0, in_extent).
struct PadPlan {
  Dims shape;          // of the output, as the graph sees it
  int64_t offset = 0;  // of the first input element that is not cropped
  int rank = 0;        // of what follows; at least 1
  int64_t out_extent[kMaxRank] = {};
  int64_t in_extent[kMaxRank] = {};
  int64_t in_stride[kMaxRank] = {};
  int64_t begin[kMaxRank] = {};
};

// `pads` holds the beginnings, then the ends, of `axes` (all dimensions when empty); negative ones crop, and what is
// left is then padded.
PadPlan pad(const Dims& input, const std::vector<int64_t>& pads, const std::vector<int64_t>& axes, PadMode mode);

// Groups elements of `size` bytes, up to 16 bytes, where the innermost dimension is not padded and the addresses and
// strides allow. Rewrites the plan in units of the new size, which it returns.
int widen(PadPlan* plan, int size, uintptr_t input, uintptr_t output);

}  // namespace cuvil::plan
