// The attribute p of LpPool and GlobalLpPool.
#pragma once

#include "ops/op.h"

namespace cuvil {

// A float in opset 1, an integer since.
inline float norm_order(const NodeView& node) {
  return node.since_version() < 2 ? node.get<float>("p", 2.0f) : static_cast<float>(node.get<int64_t>("p", 2));
}

}  // namespace cuvil
