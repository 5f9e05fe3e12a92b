// Resize and Upsample: output shape, scales, and the dimensions that the kernel sees. Host code, no CUDA.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/dims.h"

namespace cuvil::plan {

enum class AspectPolicy { kStretch, kNotLarger, kNotSmaller };

AspectPolicy aspect_policy(const std::string& name);

// What the node asks for. Of `scales` and `sizes` exactly one is not empty; both and `roi` (starts, then ends) hold a
// value for each of `axes`, or for each dimension when `axes` is empty.
struct ResizeRequest {
  std::vector<float> scales;
  std::vector<int64_t> sizes;
  std::vector<float> roi;  // empty: all of the input
  std::vector<int64_t> axes;
  AspectPolicy policy = AspectPolicy::kStretch;
};

struct ResizeDim {
  int64_t in = 1;
  int64_t out = 1;
  int64_t in_stride = 1;
  float scale = 1;
  float roi_start = 0;
  float roi_end = 1;
  bool resized = false;  // false: output index and input index are the same
};

struct ResizePlan {
  Dims shape;  // of the output, as the graph sees it
  int rank = 0;
  ResizeDim dim[kMaxRank];  // neighbours that are not resized are merged; at least one
};

// `crops`: the region of interest matters (tf_crop_and_resize), so that a scale of 1 does not mean an equal dimension.
ResizePlan resize(const Dims& input, const ResizeRequest& request, bool crops);

}  // namespace cuvil::plan
