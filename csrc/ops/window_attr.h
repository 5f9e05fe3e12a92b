// Reads the attributes of a sliding window from a node.
#pragma once

#include <string>
#include <vector>

#include "ops/op.h"
#include "plan/window.h"

namespace cuvil {

// "" and *out set, or the reason.
inline std::string parse_auto_pad(const std::string& text, AutoPad* out) {
  if (text == "NOTSET" || text.empty()) return *out = AutoPad::kNotSet, "";
  if (text == "SAME_UPPER") return *out = AutoPad::kSameUpper, "";
  if (text == "SAME_LOWER") return *out = AutoPad::kSameLower, "";
  if (text == "VALID") return *out = AutoPad::kValid, "";
  return concat("auto_pad \"", text, "\" is not known");
}

inline WindowAttributes window_attributes(const NodeView& node) {
  WindowAttributes a;
  a.kernel = node.get<std::vector<int64_t>>("kernel_shape", {});
  a.strides = node.get<std::vector<int64_t>>("strides", {});
  a.pads = node.get<std::vector<int64_t>>("pads", {});
  a.dilations = node.get<std::vector<int64_t>>("dilations", {});
  a.output_padding = node.get<std::vector<int64_t>>("output_padding", {});
  a.output_shape = node.get<std::vector<int64_t>>("output_shape", {});
  a.ceil_mode = node.get<int64_t>("ceil_mode", 0) != 0;
  const std::string reason = parse_auto_pad(node.get<std::string>("auto_pad", "NOTSET"), &a.auto_pad);
  require(reason.empty(), reason);
  return a;
}

}  // namespace cuvil
