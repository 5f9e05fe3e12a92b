#include "ops/reduce_passes.h"

#include <algorithm>

namespace cuvil {
namespace {

// One launch from p->x; without `y` into scratch memory, which the next launch reads.
void run(OpContext& ctx, ReduceParams* p, const plan::ReducePass& pass, int64_t parts, void* y) {
  p->outer = pass.outer;
  p->reduce = pass.reduce;
  p->inner = pass.inner;
  p->parts = parts;
  p->y_partial = y == nullptr;
  const size_t results = static_cast<size_t>(pass.outer * parts * pass.inner);
  p->y = y != nullptr ? y : ctx.scratch(results * reduce_partial_size(p->dtype));
  CUVIL_CUDA(launch_reduce(*p, ctx.stream()));
  p->x = p->y;
  p->x_partial = true;
}

}  // namespace

void run_reduce(OpContext& ctx, Reduction kind, const plan::ReducePlan& plan, DType dtype, const void* x, void* y) {
  ReduceParams p{};
  p.x = x;
  p.dtype = dtype;
  p.kind = kind;
  p.count = std::max<int64_t>(plan.count, 1);  // the mean of nothing is 0, as in ONNX Runtime
  const int64_t vector = 16 / static_cast<int64_t>(size_of(dtype));
  for (size_t i = 0; i < plan.passes.size(); ++i) {
    plan::ReducePass pass = plan.passes[i];
    const bool last = i + 1 == plan.passes.size();
    const int64_t parts = plan::reduce_parts(pass, vector, ctx.device().sm_count);
    if (parts > 1) {
      run(ctx, &p, pass, parts, nullptr);
      pass.reduce = parts;
    }
    run(ctx, &p, pass, 1, last ? y : nullptr);
  }
}

}  // namespace cuvil
