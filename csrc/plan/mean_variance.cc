#include "plan/mean_variance.h"

#include "plan/shapes.h"

namespace cuvil::plan {
namespace {

// Below this width the elements of a segment are too few to be read together.
constexpr int64_t kMinWidth = 16;

// The dimensions above 1, neighbours of one fate merged: runs of elements that are normalized over, or are not.
struct Runs {
  Dims extent;
  std::vector<bool> over;

  Runs(const Dims& input, const std::vector<int>& axes) {
    std::vector<bool> normalized(static_cast<size_t>(input.rank()));
    for (int axis : axes) normalized[static_cast<size_t>(axis)] = true;
    for (int d = 0; d < input.rank(); ++d) {
      const bool fate = normalized[static_cast<size_t>(d)];
      if (input[d] == 1) continue;
      if (!over.empty() && over.back() == fate) {
        extent[extent.rank() - 1] *= input[d];
      } else {
        extent.push_back(input[d]);
        over.push_back(fate);
      }
    }
  }
};

// Rows first, what is normalized over last.
void copy(const Runs& runs, MeanVariancePlan* plan) {
  const int rank = runs.extent.rank();
  const Dims strides = contiguous_strides(runs.extent);
  Dims moved, position = runs.extent;
  for (const bool over : {false, true}) {
    for (int d = 0; d < rank; ++d) {
      if (runs.over[static_cast<size_t>(d)] != over) continue;
      position[d] = moved.rank();
      moved.push_back(runs.extent[d]);
      plan->gather.push_back(runs.extent[d], strides[d]);
      (over ? plan->width : plan->rows) *= runs.extent[d];
    }
  }
  const Dims moved_strides = contiguous_strides(moved);
  for (int d = 0; d < rank; ++d) plan->scatter.push_back(runs.extent[d], moved_strides[static_cast<int>(position[d])]);
  plan->copied = true;
}

}  // namespace

MeanVariancePlan mean_variance(const Dims& input, const std::vector<int64_t>& axes) {
  const Runs runs(input, normalize_axes(axes, input.rank()));
  const Dims& e = runs.extent;
  const std::vector<bool>& over = runs.over;
  MeanVariancePlan plan;
  if (over == std::vector<bool>{true}) {
    plan.width = e[0];
  } else if (over == std::vector<bool>{false}) {
    plan.rows = e[0];
  } else if (over == std::vector<bool>{false, true}) {
    plan.rows = e[0], plan.width = e[1];
  } else if (over == std::vector<bool>{true, false, true} && e[2] >= kMinWidth) {
    plan.segments = e[0], plan.rows = e[1], plan.width = e[2];
  } else if (!over.empty()) {
    copy(runs, &plan);
  }
  return plan;
}

}  // namespace cuvil::plan
