// Output shapes of the operators that only rename dimensions, from their host-side inputs. Host code, no CUDA.
#pragma once

#include <cstdint>
#include <vector>

#include "core/dims.h"
#include "core/dtype.h"

namespace cuvil::plan {

// Reshape: -1 is inferred, 0 copies the input's dimension unless allow_zero. Throws when the element counts differ.
Dims reshape(const Dims& input, const std::vector<int64_t>& target, bool allow_zero);

// Flatten to two dimensions, split before `axis` in [-rank, rank].
Dims flatten(const Dims& input, int64_t axis);

// Squeeze: removes `axes`, all of extent 1; every extent of 1 when `axes` is empty.
Dims squeeze(const Dims& input, const std::vector<int64_t>& axes);

// Unsqueeze: `axes` are positions in the output.
Dims unsqueeze(const Dims& input, const std::vector<int64_t>& axes);

// Expand's target shape broadcast with the input's. Throws when they do not broadcast.
Dims expand(const Dims& input, const std::vector<int64_t>& target);

// Dimensions from a host shape tensor. Throws on a negative one.
Dims to_dims(const std::vector<int64_t>& values, const char* what);

// Range: max(ceil((limit - start) / delta), 0). Throws when delta is 0.
int64_t range_size(double start, double limit, double delta);
int64_t range_size(int64_t start, int64_t limit, int64_t delta);

// Sorted, unique, non-negative axes. Throws on one out of range or repeated.
std::vector<int> normalize_axes(const std::vector<int64_t>& axes, int rank);

}  // namespace cuvil::plan
