// Normalization over any set of axes as rows of [segments, rows, width]. Host code, no CUDA.
#pragma once

#include <cstdint>
#include <vector>

#include "core/dims.h"
#include "plan/strided.h"

namespace cuvil::plan {

// Row r is made of the `width` elements at [s, r] of every segment s.
struct MeanVariancePlan {
  int64_t segments = 1, rows = 1, width = 1;
  // Other arrangements of the axes go through a copy that has them as one segment: `gather` makes it of the input,
  // `scatter` puts its rows back where they came from.
  bool copied = false;
  View gather, scatter;
};

MeanVariancePlan mean_variance(const Dims& input, const std::vector<int64_t>& axes);

}  // namespace cuvil::plan
