// Reductions over any set of axes as passes over matrices [outer, reduce, inner]. Host code, no CUDA.
#pragma once

#include <cstdint>
#include <vector>

#include "core/dims.h"

namespace cuvil::plan {

// One pass: [outer, reduce, inner] -> [outer, inner].
struct ReducePass {
  int64_t outer = 1;
  int64_t reduce = 1;
  int64_t inner = 1;
};

struct ReducePlan {
  Dims shape;                      // of the output
  int64_t count = 1;               // elements behind one output element
  std::vector<ReducePass> passes;  // at least one; each reads the one before
};

// `axes` empty: all of them, or none at all with `noop` (every element is then a reduction of its own). The innermost
// reduced run goes first, as it is the one read in order.
ReducePlan reduce(const Dims& input, const std::vector<int64_t>& axes, bool keep_dims, bool noop);

// How many parts to split each reduced run into, so that a pass with few outputs still fills the device.
// `vector` is the number of elements that a thread reads at once.
int64_t reduce_parts(const ReducePass& pass, int64_t vector, int sm_count);

}  // namespace cuvil::plan
