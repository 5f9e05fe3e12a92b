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

  // Transposed convolutions only.
  std::vector<int64_t> output_padding, output_shape;

  // kernel, strides, ... are validated against `in.size()` spatial dimensions; `kernel` replaces an absent attribute.
  Window resolve(const std::vector<int64_t>& in, const std::vector<int64_t>& default_kernel) const;
  // The window of the convolution whose gradient a ConvTranspose of input `in` is: `in` and `out` change places there,
  // here `in` remains what the operator reads.
  Window resolve_transposed(const std::vector<int64_t>& in, const std::vector<int64_t>& default_kernel) const;

 private:
  // Everything but pads and `out`.
  Window without_pads(const std::vector<int64_t>& in, const std::vector<int64_t>& default_kernel) const;
};

inline Window WindowAttributes::without_pads(const std::vector<int64_t>& in,
                                             const std::vector<int64_t>& default_kernel) const {
  const size_t rank = in.size();
  require(rank >= 1 && rank <= kMaxSpatial, rank, " spatial dimensions are not supported, only 1 to ", kMaxSpatial);
  const std::vector<int64_t>& size = kernel.empty() ? default_kernel : kernel;
  const auto expect = [](const std::vector<int64_t>& values, const char* name, size_t count) {
    require(values.empty() || values.size() == count, name, " has ", values.size(), " values, expected ", count);
  };
  require(size.size() == rank, "kernel_shape has ", size.size(), " values for ", rank, " spatial dimensions");
  expect(strides, "strides", rank);
  expect(dilations, "dilations", rank);
  expect(pads, "pads", 2 * rank);
  expect(output_padding, "output_padding", rank);
  expect(output_shape, "output_shape", rank);
  Window w;
  w.rank = static_cast<int>(rank);
  for (size_t i = 0; i < rank; ++i) {
    w.in[i] = in[i];
    w.kernel[i] = size[i];
    w.stride[i] = strides.empty() ? 1 : strides[i];
    w.dilation[i] = dilations.empty() ? 1 : dilations[i];
    require(w.kernel[i] > 0 && w.stride[i] > 0 && w.dilation[i] > 0,
            "kernel_shape, strides and dilations must be positive");
  }
  for (const int64_t pad : pads) require(pad >= 0, "negative pads are not supported");
  return w;
}

inline Window WindowAttributes::resolve(const std::vector<int64_t>& in,
                                        const std::vector<int64_t>& default_kernel) const {
  Window w = without_pads(in, default_kernel);
  const size_t rank = in.size();
  for (size_t i = 0; i < rank; ++i) {
    const int64_t extent = (w.kernel[i] - 1) * w.dilation[i] + 1;
    if (auto_pad == AutoPad::kSameUpper || auto_pad == AutoPad::kSameLower) {
      w.out[i] = (w.in[i] + w.stride[i] - 1) / w.stride[i];
      const int64_t total = std::max<int64_t>((w.out[i] - 1) * w.stride[i] + extent - w.in[i], 0);
      w.pad_begin[i] = auto_pad == AutoPad::kSameUpper ? total / 2 : total - total / 2;
      w.pad_end[i] = total - w.pad_begin[i];
      continue;
    }
    if (auto_pad == AutoPad::kNotSet && !pads.empty()) w.pad_begin[i] = pads[i], w.pad_end[i] = pads[i + rank];
    const int64_t room = w.in[i] + w.pad_begin[i] + w.pad_end[i] - extent;
    require(room >= 0, "the window of ", extent, " is larger than the padded input of ",
            w.in[i] + w.pad_begin[i] + w.pad_end[i], " in spatial dimension ", i);
    w.out[i] = room / w.stride[i] + 1;
    // Rounding up adds a window that hangs over the end, but none that starts in the padding behind the input.
    if (ceil_mode && room % w.stride[i] != 0 && w.out[i] * w.stride[i] < w.in[i] + w.pad_begin[i]) ++w.out[i];
  }
  return w;
}

inline Window WindowAttributes::resolve_transposed(const std::vector<int64_t>& in,
                                                   const std::vector<int64_t>& default_kernel) const {
  Window w = without_pads(in, default_kernel);
  const size_t rank = in.size();
  const bool same = auto_pad == AutoPad::kSameUpper || auto_pad == AutoPad::kSameLower;
  for (size_t i = 0; i < rank; ++i) {
    const int64_t extra = output_padding.empty() ? 0 : output_padding[i];
    require(extra >= 0 && extra < std::max(w.stride[i], w.dilation[i]), "output_padding ", extra,
            " must be smaller than the stride or dilation");
    // What an input without pads spreads to.
    const int64_t full = w.stride[i] * (w.in[i] - 1) + (w.kernel[i] - 1) * w.dilation[i] + 1 + extra;
    if (!output_shape.empty() || same) {
      w.out[i] = output_shape.empty() ? w.in[i] * w.stride[i] : output_shape[i];
      // What the kernel does not reach is zero, as behind output_padding, whose bounds hold for it too.
      const int64_t beyond = std::max<int64_t>(w.out[i] - full, 0);
      require(beyond + extra < std::max(w.stride[i], w.dilation[i]), "output_shape ", w.out[i], " is larger than the ",
              full, " that the kernel reaches by a stride or more");
      const int64_t total = full + beyond - w.out[i];
      w.pad_begin[i] = auto_pad == AutoPad::kSameUpper ? total / 2 : total - total / 2;
      w.pad_end[i] = total - w.pad_begin[i];
    } else {
      if (auto_pad == AutoPad::kNotSet && !pads.empty()) w.pad_begin[i] = pads[i], w.pad_end[i] = pads[i + rank];
      w.out[i] = full - w.pad_begin[i] - w.pad_end[i];
      require(w.out[i] > 0, "pads of ", w.pad_begin[i], " and ", w.pad_end[i], " leave nothing of an output of ", full);
    }
  }
  return w;
}

}  // namespace cuvil
