// Pads and crops a tensor: what Pad and CenterCropPad share.
#pragma once

#include "kernels/pad.cuh"
#include "ops/op.h"
#include "plan/pad.h"

namespace cuvil {

// Fills y, of plan.shape, from x. `value` holds the bytes of one element, for the constant mode.
void run_pad(OpContext& ctx, const Tensor& x, const Tensor& y, plan::PadPlan plan, PadMode mode,
             const unsigned char* value);

}  // namespace cuvil
