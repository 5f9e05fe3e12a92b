#include "plan/slice.h"

#include <algorithm>
#include <limits>

namespace cuvil::plan {

SlicePlan slice(const Dims& input, const std::vector<int64_t>& starts, const std::vector<int64_t>& ends,
                const std::vector<int64_t>& axes, const std::vector<int64_t>& steps) {
  require(starts.size() == ends.size(), "Slice: ", starts.size(), " starts but ", ends.size(), " ends");
  require(axes.empty() || axes.size() == starts.size(), "Slice: ", starts.size(), " starts but ", axes.size(), " axes");
  require(steps.empty() || steps.size() == starts.size(), "Slice: ", starts.size(), " starts but ", steps.size(),
          " steps");
  SlicePlan plan;
  plan.shape = input;
  const Dims in_stride = contiguous_strides(input);
  Dims stride = in_stride;
  bool seen[kMaxRank] = {};
  for (size_t i = 0; i < starts.size(); ++i) {
    const int axis = normalize_axis(axes.empty() ? static_cast<int64_t>(i) : axes[i], input.rank());
    require(!seen[axis], "Slice: axis ", axis, " is listed twice");
    seen[axis] = true;
    const int64_t d = input[axis];
    // A step of INT64_MIN has no positive twin; any step of at least the extent takes one element.
    const int64_t step =
        steps.empty() ? 1
                      : std::clamp(steps[i], -std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::max());
    require(step != 0, "Slice: a step is 0");
    int64_t start = starts[i] < 0 ? starts[i] + d : starts[i];
    // The largest integer means "to the end" in either direction, as ONNX Runtime reads the standard.
    const bool open = ends[i] == std::numeric_limits<int64_t>::max() || ends[i] == std::numeric_limits<int32_t>::max();
    int64_t end = open ? (step > 0 ? d : -1) : ends[i] < 0 ? ends[i] + d : ends[i];
    start = step > 0 ? std::clamp<int64_t>(start, 0, d) : std::clamp<int64_t>(start, 0, std::max<int64_t>(d - 1, 0));
    end = step > 0 ? std::clamp<int64_t>(end, 0, d) : std::clamp<int64_t>(end, -1, d);
    const int64_t gap = step > 0 ? end - start : start - end;
    const int64_t size = step > 0 ? step : -step;
    const int64_t n = d > 0 && gap > 0 ? (gap - 1) / size + 1 : 0;
    plan.shape[axis] = n;
    if (n > 0) plan.view.offset += start * in_stride[axis];
    stride[axis] = n > 1 ? in_stride[axis] * step : in_stride[axis];  // a huge step must not overflow
  }
  for (int i = 0; i < input.rank(); ++i) plan.view.push_back(plan.shape[i], stride[i]);
  return plan;
}

}  // namespace cuvil::plan
