// Greedy non-maximum suppression, each (sample, class) by itself.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace cuvil {

struct NmsParams {
  const float* boxes = nullptr;   // [batch, n, 4]: two opposite corners y, x, y, x, or centre x, y, width, height
  const float* scores = nullptr;  // [batch, classes, n]
  float* alive = nullptr;         // scratch, [batch, classes, n]
  int64_t* picked = nullptr;      // scratch, [batch, classes, most]: indices of boxes in the order of their picking
  int64_t* counts = nullptr;      // [batch * classes], how many were picked
  int64_t batch = 0, classes = 0, n = 0;
  int64_t most = 0;  // boxes to pick of a class, > 0
  float iou_threshold = 0;
  bool has_score_threshold = false;
  float score_threshold = 0;  // only boxes above it
  bool centered = false;
};

// Of equal scores the box of lower index comes first. A box is dropped when its intersection over union with a picked
// one is above the threshold. A NaN score is never picked.
cudaError_t launch_nms(const NmsParams& p, cudaStream_t stream);

// y[j] = (sample, class, box) of all picked boxes, classes in order. `starts` [batch * classes] is where each begins.
struct NmsGatherParams {
  const int64_t* picked = nullptr;
  const int64_t* counts = nullptr;
  const int64_t* starts = nullptr;
  int64_t* y = nullptr;
  int64_t groups = 0, classes = 0, most = 0;
};

cudaError_t launch_nms_gather(const NmsGatherParams& p, cudaStream_t stream);

}  // namespace cuvil
