// Cast and CastLike of types that pointwise programs do not know: 8-bit floats, 4- and 2-bit integers.
#pragma once

#include <memory>
#include <string>

#include "ops/op.h"

namespace cuvil {

// Whether the node's input 0 or its output has such a type.
bool is_narrow_cast(const NodeView& node);
// "" or why the node does not run here.
std::string narrow_cast_refusal(const NodeView& node);
std::unique_ptr<Op> create_narrow_cast(const NodeView& node);

}  // namespace cuvil
