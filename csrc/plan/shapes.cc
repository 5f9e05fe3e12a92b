#include "plan/shapes.h"

#include <algorithm>
#include <cmath>

namespace cuvil::plan {

Dims reshape(const Dims& input, const std::vector<int64_t>& target, bool allow_zero) {
  Dims out;
  int inferred = -1;
  int64_t known = 1;
  bool zero = false;
  for (size_t i = 0; i < target.size(); ++i) {
    int64_t d = target[i];
    require(d >= -1, "Reshape: shape[", i, "] is ", d, "; dimensions are >= -1");
    if (d == -1) {
      require(inferred < 0, "Reshape: more than one -1 in the shape");
      inferred = static_cast<int>(i);
      out.push_back(1);
      continue;
    }
    if (d == 0 && !allow_zero) {
      require(static_cast<int>(i) < input.rank(), "Reshape: shape[", i, "] is 0, but the input ", input.to_string(),
              " has no such dimension to copy");
      d = input[static_cast<int>(i)];
    }
    zero = zero || (target[i] == 0 && allow_zero);
    known *= d;
    out.push_back(d);
  }
  if (inferred >= 0) {
    require(!zero, "Reshape: shape holds both 0 and -1 with allowzero=1");
    require(known != 0 ? input.size() % known == 0 : input.size() == 0, "Reshape: ", input.to_string(),
            " does not divide into the known dimensions, which hold ", known, " elements");
    out[inferred] = known != 0 ? input.size() / known : 0;
  }
  require(out.size() == input.size(), "Reshape: ", input.to_string(), " holds ", input.size(), " elements, ",
          out.to_string(), " would hold ", out.size());
  return out;
}

Dims flatten(const Dims& input, int64_t axis) {
  const int rank = input.rank();
  require(axis >= -rank && axis <= rank, "Flatten: axis ", axis, " is out of range for rank ", rank);
  const int split = static_cast<int>(axis < 0 ? axis + rank : axis);
  return Dims{input.product(0, split), input.product(split, rank)};
}

std::vector<int> normalize_axes(const std::vector<int64_t>& axes, int rank) {
  std::vector<int> out;
  for (int64_t a : axes) out.push_back(normalize_axis(a, rank));
  std::sort(out.begin(), out.end());
  require(std::adjacent_find(out.begin(), out.end()) == out.end(), "axes repeat an axis");
  return out;
}

Dims squeeze(const Dims& input, const std::vector<int64_t>& axes) {
  const std::vector<int> drop = normalize_axes(axes, input.rank());
  Dims out;
  for (int i = 0; i < input.rank(); ++i) {
    const bool listed = std::binary_search(drop.begin(), drop.end(), i);
    require(!listed || input[i] == 1, "Squeeze: axis ", i, " of ", input.to_string(), " is not 1");
    if (!(listed || (axes.empty() && input[i] == 1))) out.push_back(input[i]);
  }
  return out;
}

Dims unsqueeze(const Dims& input, const std::vector<int64_t>& axes) {
  const int rank = input.rank() + static_cast<int>(axes.size());
  require(rank <= kMaxRank, "Unsqueeze: output rank ", rank, " is above the supported ", kMaxRank);
  const std::vector<int> added = normalize_axes(axes, rank);
  Dims out;
  int from = 0;
  for (int i = 0; i < rank; ++i) out.push_back(std::binary_search(added.begin(), added.end(), i) ? 1 : input[from++]);
  return out;
}

Dims expand(const Dims& input, const std::vector<int64_t>& target) {
  return broadcast(input, to_dims(target, "Expand: shape"));
}

Dims to_dims(const std::vector<int64_t>& values, const char* what) {
  for (int64_t v : values) require(v >= 0, what, " holds the negative dimension ", v);
  return Dims(values.data(), values.size());
}

int64_t range_size(double start, double limit, double delta) {
  require(delta != 0, "Range: delta is 0");
  const double n = std::ceil((limit - start) / delta);
  require(n < 9e18, "Range: ", n, " elements are too many");
  return n > 0 ? static_cast<int64_t>(n) : 0;
}

int64_t range_size(int64_t start, int64_t limit, int64_t delta) {
  require(delta != 0, "Range: delta is 0");
  if (delta > 0 ? start >= limit : start <= limit) return 0;
  // Unsigned differences: limit - start may not fit in 63 bits.
  const uint64_t gap = delta > 0 ? static_cast<uint64_t>(limit) - static_cast<uint64_t>(start)
                                 : static_cast<uint64_t>(start) - static_cast<uint64_t>(limit);
  const uint64_t step = delta > 0 ? static_cast<uint64_t>(delta) : -static_cast<uint64_t>(delta);
  return static_cast<int64_t>((gap - 1) / step + 1);
}

}  // namespace cuvil::plan
