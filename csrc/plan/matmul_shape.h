// How a broadcast product of any rank becomes strided-batched products of matrices. Host arithmetic only.
#pragma once

#include <vector>

#include "core/dims.h"

namespace cuvil {

struct MatMulShape {
  int64_t m = 0, n = 0, k = 0;
  // One call multiplies `batch` matrices; strides in elements, 0 where one matrix serves all. The output's are m * n.
  int64_t batch = 1, stride_a = 0, stride_b = 0;
  // A call for each of these element offsets (batch dimensions whose broadcast no single stride expresses).
  struct Call {
    int64_t a = 0, b = 0, d = 0;
  };
  std::vector<Call> calls;
  Dims output;
};

// NumPy's rules: a vector on the left is a row, on the right a column, and its added dimension leaves the output;
// leading dimensions broadcast. trans_x: the operand's last two dimensions are swapped in memory (rank >= 2 only).
inline MatMulShape matmul_shape(const Dims& a, const Dims& b, bool trans_a, bool trans_b) {
  require(a.rank() >= 1 && b.rank() >= 1, "MatMul needs operands of rank 1 or more, got ", a.to_string(), " and ",
          b.to_string());
  require((!trans_a || a.rank() >= 2) && (!trans_b || b.rank() >= 2), "a transposed operand needs rank 2 or more");
  MatMulShape s;
  const auto matrix_dim = [](const Dims& d, int from_last) { return d[d.rank() - from_last]; };
  s.m = a.rank() == 1 ? 1 : matrix_dim(a, trans_a ? 1 : 2);
  s.k = a.rank() == 1 ? a[0] : matrix_dim(a, trans_a ? 2 : 1);
  const int64_t k_of_b = b.rank() == 1 ? b[0] : matrix_dim(b, trans_b ? 1 : 2);
  s.n = b.rank() == 1 ? 1 : matrix_dim(b, trans_b ? 2 : 1);
  require(s.k == k_of_b, "shapes ", a.to_string(), trans_a ? " (transposed)" : "", " and ", b.to_string(),
          trans_b ? " (transposed)" : "", " cannot be multiplied: inner dimensions ", s.k, " and ", k_of_b, " differ");

  const Dims lead_a(a.data(), static_cast<size_t>(a.rank() > 2 ? a.rank() - 2 : 0));
  const Dims lead_b(b.data(), static_cast<size_t>(b.rank() > 2 ? b.rank() - 2 : 0));
  const Dims lead = broadcast(lead_a, lead_b);
  s.output = lead;
  if (a.rank() > 1) s.output.push_back(s.m);
  if (b.rank() > 1) s.output.push_back(s.n);

  if (lead_b.size() == 1 && !trans_a) {
    // One right-hand matrix: the left ones, stacked, are one tall matrix.
    s.m *= lead.size();
    s.calls = {{}};
    return s;
  }

  // Batch dimensions, innermost first, neighbours merged where both operands' strides allow it.
  struct Axis {
    int64_t extent, a, b;
  };
  std::vector<Axis> axes;
  int64_t step_a = s.m * s.k, step_b = s.k * s.n;
  for (int i = 1; i <= lead.rank(); ++i) {
    const int64_t in_a = i <= lead_a.rank() ? lead_a[lead_a.rank() - i] : 1;
    const int64_t in_b = i <= lead_b.rank() ? lead_b[lead_b.rank() - i] : 1;
    const int64_t extent = lead[lead.rank() - i];
    if (extent != 1) {
      const Axis axis{extent, in_a == 1 ? 0 : step_a, in_b == 1 ? 0 : step_b};
      if (!axes.empty() && axis.a == axes.back().a * axes.back().extent && axis.b == axes.back().b * axes.back().extent)
        axes.back().extent *= extent;
      else
        axes.push_back(axis);
    }
    step_a *= in_a;
    step_b *= in_b;
  }
  s.calls = {{}};
  if (axes.empty()) return s;
  s.batch = axes[0].extent;
  s.stride_a = axes[0].a;
  s.stride_b = axes[0].b;
  int64_t step_d = s.batch * s.m * s.n;
  for (size_t i = 1; i < axes.size(); ++i) {
    std::vector<MatMulShape::Call> repeated;
    for (int64_t j = 0; j < axes[i].extent; ++j)
      for (const MatMulShape::Call& c : s.calls)
        repeated.push_back({c.a + j * axes[i].a, c.b + j * axes[i].b, c.d + j * step_d});
    s.calls = std::move(repeated);
    step_d *= axes[i].extent;
  }
  return s;
}

}  // namespace cuvil
