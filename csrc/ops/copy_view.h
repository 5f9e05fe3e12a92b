// Runs a plan::View on the device with the fastest kernel that fits: a plain copy, a tiled transpose, a strided copy.
#pragma once

#include "ops/op.h"
#include "plan/strided.h"

namespace cuvil {

// Fills `output`, contiguous, with the elements of `input` that `view` selects; views without elements do nothing.
void copy_view(OpContext& ctx, const void* input, void* output, DType dtype, const plan::View& view);

}  // namespace cuvil
