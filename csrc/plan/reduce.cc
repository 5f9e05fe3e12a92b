#include "plan/reduce.h"

#include <algorithm>

#include "plan/reduce_tile.h"
#include "plan/shapes.h"

namespace cuvil::plan {
namespace {

struct Run {
  int64_t extent;
  bool reduced;
};

// Neighbouring dimensions with the same fate are one run; dimensions of 1 have none.
std::vector<Run> runs_of(const Dims& input, const std::vector<bool>& reduced) {
  std::vector<Run> runs;
  for (int i = 0; i < input.rank(); ++i) {
    if (input[i] == 1) continue;
    const bool r = reduced[static_cast<size_t>(i)];
    if (!runs.empty() && runs.back().reduced == r)
      runs.back().extent *= input[i];
    else
      runs.push_back({input[i], r});
  }
  return runs;
}

}  // namespace

ReducePlan reduce(const Dims& input, const std::vector<int64_t>& axes, bool keep_dims, bool noop) {
  const int rank = input.rank();
  std::vector<bool> reduced(static_cast<size_t>(rank), axes.empty() && !noop);
  for (int a : normalize_axes(axes, rank)) reduced[static_cast<size_t>(a)] = true;

  ReducePlan plan;
  for (int i = 0; i < rank; ++i) {
    const bool r = reduced[static_cast<size_t>(i)];
    if (r) plan.count *= input[i];
    if (!r)
      plan.shape.push_back(input[i]);
    else if (keep_dims)
      plan.shape.push_back(1);
  }

  const std::vector<Run> runs = runs_of(input, reduced);
  int64_t inner = 1;
  for (size_t i = runs.size(); i-- > 0;) {
    if (!runs[i].reduced) {
      inner *= runs[i].extent;
      continue;
    }
    ReducePass pass{1, runs[i].extent, inner};
    for (size_t j = 0; j < i; ++j) pass.outer *= runs[j].extent;
    plan.passes.push_back(pass);
  }
  if (plan.passes.empty()) plan.passes.push_back({1, 1, input.size()});  // each element is its own reduction
  return plan;
}

int64_t reduce_parts(const ReducePass& pass, int64_t vector, int sm_count) {
  if (pass.outer * pass.inner == 0) return 1;
  int64_t blocks = pass.outer, least = kReduceThreads * vector * 4;  // a part with less would cost more than it gains
  if (pass.inner > 1) {
    const int64_t groups = (pass.inner + vector - 1) / vector;
    const int64_t columns = reduce_tile_columns(pass.outer, pass.reduce, groups);
    blocks *= (groups + columns - 1) / columns;
    least = kReduceThreads / columns * 16;
  }
  const int64_t wanted = static_cast<int64_t>(sm_count) * 8 / blocks;  // a full device runs 8 such blocks a processor
  return std::max<int64_t>(1, std::min(wanted, pass.reduce / least));
}

}  // namespace cuvil::plan
