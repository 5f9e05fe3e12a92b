#include "plan/resize.h"

#include <algorithm>
#include <cmath>

#include "plan/strided.h"

namespace cuvil::plan {
namespace {

// Sizes under an aspect policy: one scale for all axes, rounded to the nearest size.
void keep_aspect(const Dims& input, const std::vector<int>& axes, AspectPolicy policy, std::vector<int64_t>* sizes,
                 std::vector<float>* scales) {
  float chosen = 0;
  for (size_t i = 0; i < axes.size(); ++i) {
    const float s = static_cast<float>((*sizes)[i]) / static_cast<float>(input[axes[i]]);
    if (i == 0)
      chosen = s;
    else
      chosen = policy == AspectPolicy::kNotLarger ? std::min(chosen, s) : std::max(chosen, s);
  }
  for (size_t i = 0; i < axes.size(); ++i) {
    (*scales)[i] = chosen;
    (*sizes)[i] = static_cast<int64_t>(std::round(chosen * static_cast<float>(input[axes[i]])));
  }
}

}  // namespace

AspectPolicy aspect_policy(const std::string& name) {
  if (name == "stretch") return AspectPolicy::kStretch;
  if (name == "not_larger") return AspectPolicy::kNotLarger;
  require(name == "not_smaller", "Resize: keep_aspect_ratio_policy is '", name, "'");
  return AspectPolicy::kNotSmaller;
}

ResizePlan resize(const Dims& input, const ResizeRequest& request, bool crops) {
  const int rank = input.rank();
  std::vector<int> axes;
  if (request.axes.empty())
    for (int i = 0; i < rank; ++i) axes.push_back(i);
  for (int64_t a : request.axes) axes.push_back(normalize_axis(a, rank));

  std::vector<float> scales = request.scales;
  std::vector<int64_t> sizes = request.sizes;
  require(scales.empty() != sizes.empty(), "Resize: exactly one of scales and sizes is required");
  require(std::max(scales.size(), sizes.size()) == axes.size(), "Resize: ", std::max(scales.size(), sizes.size()),
          " scales or sizes for ", axes.size(), " axes");
  require(request.roi.empty() || request.roi.size() == 2 * axes.size(), "Resize: roi holds ", request.roi.size(),
          " values for ", axes.size(), " axes; two an axis are required");
  if (!sizes.empty()) {
    scales.resize(axes.size());
    for (size_t i = 0; i < axes.size(); ++i) {
      require(sizes[i] >= 0, "Resize: a size is ", sizes[i]);
      require(input[axes[i]] > 0 || sizes[i] == 0, "Resize: axis ", axes[i], " is empty and cannot become ", sizes[i]);
      scales[i] = input[axes[i]] > 0 ? static_cast<float>(sizes[i]) / static_cast<float>(input[axes[i]]) : 1.0f;
    }
    if (request.policy != AspectPolicy::kStretch) keep_aspect(input, axes, request.policy, &sizes, &scales);
  }

  ResizeDim all[kMaxRank];
  const Dims strides = contiguous_strides(input);
  for (int i = 0; i < rank; ++i) {
    all[i].in = all[i].out = input[i];
    all[i].in_stride = strides[i];
  }
  for (size_t i = 0; i < axes.size(); ++i) {
    ResizeDim& d = all[axes[i]];
    require(scales[i] > 0 || d.in == 0, "Resize: scale ", scales[i], " is not positive");
    d.scale = scales[i];
    d.out = sizes.empty() ? static_cast<int64_t>(scales[i] * static_cast<float>(d.in)) : sizes[i];
    if (!request.roi.empty()) {
      d.roi_start = request.roi[i];
      d.roi_end = request.roi[i + axes.size()];
    }
    const bool whole = d.roi_start == 0 && d.roi_end == 1;
    d.resized = d.scale != 1.0f || d.out != d.in || (crops && !whole);
  }

  ResizePlan plan;
  for (int i = 0; i < rank; ++i) {
    plan.shape.push_back(all[i].out);
    if (plan.rank > 0 && !plan.dim[plan.rank - 1].resized && !all[i].resized) {
      ResizeDim& last = plan.dim[plan.rank - 1];
      last.in *= all[i].in;
      last.out *= all[i].out;
      last.in_stride = all[i].in_stride;
    } else {
      plan.dim[plan.rank++] = all[i];
    }
  }
  if (plan.rank == 0) plan.rank = 1;
  return plan;
}

}  // namespace cuvil::plan
