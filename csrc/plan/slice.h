// Slice normalised to a view. Host code, no CUDA.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/strided.h"

namespace cuvil::plan {

struct SlicePlan {
  Dims shape;  // of the output
  View view;
};

// `axes` empty: the first starts.size() ones; `steps` empty: all 1. Starts and ends are clamped as ONNX says: negative
// ones count from the end, and an end below the beginning in a backward slice means "to the first element".
SlicePlan slice(const Dims& input, const std::vector<int64_t>& starts, const std::vector<int64_t>& ends,
                const std::vector<int64_t>& axes, const std::vector<int64_t>& steps);

}  // namespace cuvil::plan
