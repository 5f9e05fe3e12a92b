#include "ops/run_pad.h"

#include <algorithm>
#include <cstring>

namespace cuvil {

void run_pad(OpContext& ctx, const Tensor& x, const Tensor& y, plan::PadPlan plan, PadMode mode,
             const unsigned char* value) {
  if (y.size() == 0) return;
  PadParams p{};
  p.mode = mode;
  const size_t size = size_of(x.dtype);
  for (size_t i = 0; i < sizeof(p.value); i += size) std::memcpy(p.value + i, value, size);
  const int wide = plan::widen(&plan, static_cast<int>(size), reinterpret_cast<uintptr_t>(x.data),
                               reinterpret_cast<uintptr_t>(y.data));
  p.input = x.as<char>() + plan.offset * wide;
  p.output = y.data;
  p.element_size = wide;
  p.rank = plan.rank;
  std::copy_n(plan.out_extent, plan.rank, p.out_extent);
  std::copy_n(plan.in_extent, plan.rank, p.in_extent);
  std::copy_n(plan.in_stride, plan.rank, p.in_stride);
  std::copy_n(plan.begin, plan.rank, p.begin);
  CUVIL_CUDA(launch_pad(p, ctx.stream()));
}

}  // namespace cuvil
