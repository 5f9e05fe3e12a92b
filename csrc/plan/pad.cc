#include "plan/pad.h"

#include <algorithm>

#include "plan/strided.h"

namespace cuvil::plan {

PadMode pad_mode(const std::string& name) {
  if (name == "constant") return PadMode::kConstant;
  if (name == "reflect") return PadMode::kReflect;
  if (name == "edge") return PadMode::kEdge;
  require(name == "wrap", "Pad: mode is '", name, "'; constant, reflect, edge or wrap is required");
  return PadMode::kWrap;
}

PadPlan pad(const Dims& input, const std::vector<int64_t>& pads, const std::vector<int64_t>& axes, PadMode mode) {
  const int rank = input.rank();
  const size_t listed = axes.empty() ? static_cast<size_t>(rank) : axes.size();
  require(pads.size() == 2 * listed, "Pad: ", pads.size(), " pads for ", listed, " axes; two an axis are required");
  int64_t before[kMaxRank] = {}, after[kMaxRank] = {};
  for (size_t i = 0; i < listed; ++i) {
    const int axis = axes.empty() ? static_cast<int>(i) : normalize_axis(axes[i], rank);
    before[axis] = pads[i];
    after[axis] = pads[i + listed];
  }

  PadPlan plan;
  const Dims strides = contiguous_strides(input);
  bool last_plain = false;
  for (int i = 0; i < rank; ++i) {
    const int64_t crop = -std::min<int64_t>(before[i], 0), begin = std::max<int64_t>(before[i], 0);
    const int64_t kept = input[i] - crop + std::min<int64_t>(after[i], 0);
    const int64_t extent = input[i] + before[i] + after[i];
    require(kept >= 0 && extent >= 0, "Pad: pads ", before[i], " and ", after[i], " leave less than nothing of ",
            input[i]);
    require(mode == PadMode::kConstant || kept > 0 || extent == 0, "Pad: dimension ", i,
            " has nothing to fill its padding from");
    plan.shape.push_back(extent);
    plan.offset += crop * strides[i];
    // Two neighbours that are neither padded nor cropped are one run of memory.
    const bool plain = before[i] == 0 && after[i] == 0;
    if (plan.rank > 0 && plain && last_plain) {
      plan.out_extent[plan.rank - 1] *= extent;
      plan.in_extent[plan.rank - 1] *= kept;
      plan.in_stride[plan.rank - 1] = strides[i];
    } else {
      plan.out_extent[plan.rank] = extent;
      plan.in_extent[plan.rank] = kept;
      plan.in_stride[plan.rank] = strides[i];
      plan.begin[plan.rank++] = begin;
    }
    last_plain = plain;
  }
  if (plan.rank == 0) {
    plan.rank = 1;
    plan.out_extent[0] = plan.in_extent[0] = plan.in_stride[0] = 1;
  }
  return plan;
}

int widen(PadPlan* plan, int size, uintptr_t input, uintptr_t output) {
  const int inner = plan->rank - 1;
  if (plan->begin[inner] != 0 || plan->in_extent[inner] != plan->out_extent[inner]) return size;
  int64_t factor = 16 / size;
  for (; factor > 1; factor /= 2) {
    const uintptr_t bytes = static_cast<uintptr_t>(factor) * static_cast<uintptr_t>(size);
    bool fits =
        plan->in_extent[inner] % factor == 0 && plan->offset % factor == 0 && input % bytes == 0 && output % bytes == 0;
    for (int i = 0; i < inner; ++i) fits = fits && plan->in_stride[i] % factor == 0;
    if (fits) break;
  }
  plan->in_extent[inner] /= factor;
  plan->out_extent[inner] /= factor;
  plan->offset /= factor;
  for (int i = 0; i < inner; ++i) plan->in_stride[i] /= factor;
  return size * static_cast<int>(factor);
}

}  // namespace cuvil::plan
