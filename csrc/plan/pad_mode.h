// How Pad fills what it adds; shared by plan and kernel.
#pragma once

namespace cuvil {

enum class PadMode { kConstant, kReflect, kEdge, kWrap };

}  // namespace cuvil
