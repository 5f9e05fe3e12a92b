// An Einsum lowered to copies of views, reductions, matrix products and plain products. Host code, no CUDA.
#pragma once

#include <cstdint>
#include <vector>

#include "core/dims.h"
#include "plan/einsum_equation.h"
#include "plan/reduce.h"
#include "plan/strided.h"

namespace cuvil::plan {

// What one step of the plan does. Tensors are numbered: the inputs, then the result of each step.
struct EinsumStep {
  enum class Kind { kCopy, kReduce, kGemm, kProduct } kind = Kind::kCopy;
  int a = 0, b = -1;     // tensors; b of kGemm and kProduct
  int64_t elements = 0;  // of the result

  View view;          // kCopy: of a
  ReducePlan reduce;  // kReduce: sums of a

  // kGemm: result [batch, m, n] = sum over k; strides between neighbouring matrices, 0 where all share one.
  int64_t m = 1, n = 1, k = 1, batch = 1, stride_a = 0, stride_b = 0;
  bool trans_a = false, trans_b = false;  // stored [k, m], [n, k]

  // kProduct: result[i] = sum over the last `reduced` dimensions of a * b. One extent and stride for each dimension.
  std::vector<int64_t> extent, step_a, step_b;
  int reduced = 0;
};

struct EinsumPlan {
  Dims output;
  bool zero = false;              // the output is filled with zeros: a summed dimension is empty
  std::vector<EinsumStep> steps;  // the last one makes the output; none when it is empty or zero
};

// A dimension of 1 broadcasts against others of its label. Throws when extents or ranks do not fit the equation.
EinsumPlan plan_einsum(const EinsumEquation& equation, const std::vector<Dims>& shapes);

}  // namespace cuvil::plan
