// Sliding windows of convolutions and pools: attributes resolved against a shape. Host arithmetic only.
#pragma once

#include <algorithm>
#include <array>
#include <compare>
#include <cstdint>
#include <vector>

#include "core/error.h"

namespace cuvil {

constexpr int kMaxSpatial = 3;
using Spatial = std::array<int64_t, kMaxSpatial>;

// One window, resolved: `rank` spatial dimensions are in use.
struct Window {
  int rank = 0;
  Spatial in{}, out{}, kernel{}, stride{}, dilation{}, pad_begin{}, pad_end{};

  auto operator<=>(const Window&) const = default;
  int64_t in_size() const { return product(in); }
  int64_t out_size() const { return product(out); }
  int64_t kernel_size() const { return product(kernel); }
  bool symmetric() const { return pad_begin == pad_end; }

 private:
  int64_t product(const Spatial& s) const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= s[static_cast<size_t>(i)];
    return n;
  }
};

enum class AutoPad { kNotSet, kSameUpper, kSameLower, kValid };

struct WindowAttributes {
  std::vector<int64_t> kernel, strides, pads, dilations;  // empty: the default (for a kernel, that of the weights)
  AutoPad auto_pad = AutoPad::kNotSet;
  bool ceil_mode = false;

  // kernel, strides, ... are validated against `in.size()` spatial dimensions; `kernel` replaces an absent attribute.
  Window resolve(const std::vector<int64_t>& in, const std::vector<int64_t>& default_kernel) const;
};

inline Window WindowAttributes::resolve(const std::vector<int64_t>& in,
                                        const std::vector<int64_t>& default_kernel) const {
  const size_t rank = in.size();
  require(rank >= 1 && rank <= kMaxSpatial, rank, " spatial dimensions are not supported, only 1 to ", kMaxSpatial);
  const std::vector<int64_t>& size = kernel.empty() ? default_kernel : kernel;
  require(size.size() == rank, "kernel_shape has ", size.size(), " values for ", rank, " spatial dimensions");
  require(strides.empty() || strides.size() == rank, "strides has ", strides.size(), " values, expected ", rank);
  require(dilations.empty() || dilations.size() == rank, "dilations has ", dilations.size(), " values, expected ",
          rank);
  require(pads.empty() || pads.size() == 2 * rank, "pads has ", pads.size(), " values, expected ", 2 * rank);
  Window w;
  w.rank = static_cast<int>(rank);
  for (size_t i = 0; i < rank; ++i) {
    w.in[i] = in[i];
    w.kernel[i] = size[i];
    w.stride[i] = strides.empty() ? 1 : strides[i];
    w.dilation[i] = dilations.empty() ? 1 : dilations[i];
    require(w.kernel[i] > 0 && w.stride[i] > 0 && w.dilation[i] > 0,
            "kernel_shape, strides and dilations must be positive");
    const int64_t extent = (w.kernel[i] - 1) * w.dilation[i] + 1;
    if (auto_pad == AutoPad::kSameUpper || auto_pad == AutoPad::kSameLower) {
      w.out[i] = (w.in[i] + w.stride[i] - 1) / w.stride[i];
      const int64_t total = std::max<int64_t>((w.out[i] - 1) * w.stride[i] + extent - w.in[i], 0);
      w.pad_begin[i] = auto_pad == AutoPad::kSameUpper ? total / 2 : total - total / 2;
      w.pad_end[i] = total - w.pad_begin[i];
      continue;
    }
    if (auto_pad == AutoPad::kNotSet && !pads.empty()) w.pad_begin[i] = pads[i], w.pad_end[i] = pads[i + rank];
    require(w.pad_begin[i] >= 0 && w.pad_end[i] >= 0, "negative pads are not supported");
    const int64_t room = w.in[i] + w.pad_begin[i] + w.pad_end[i] - extent;
    require(room >= 0, "the window of ", extent, " is larger than the padded input of ",
            w.in[i] + w.pad_begin[i] + w.pad_end[i], " in spatial dimension ", i);
    w.out[i] = room / w.stride[i] + 1;
    // Rounding up adds a window that hangs over the end, but none that starts in the padding behind the input.
    if (ceil_mode && room % w.stride[i] != 0 && w.out[i] * w.stride[i] < w.in[i] + w.pad_begin[i]) ++w.out[i];
  }
  return w;
}

}  // namespace cuvil
