// Runs the passes of a plan::ReducePlan.
#pragma once

#include "kernels/reduce.cuh"
#include "ops/op.h"
#include "plan/reduce.h"

namespace cuvil {

// y, of plan.shape, from the contiguous x; both of `dtype`, y not empty.
void run_reduce(OpContext& ctx, Reduction kind, const plan::ReducePlan& plan, DType dtype, const void* x, void* y);

}  // namespace cuvil
