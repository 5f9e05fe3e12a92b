// Checks and readings shared by the ops on 8-bit integers.
#pragma once

#include <string>

#include "kernels/int_gemm.cuh"
#include "ops/op.h"

namespace cuvil {

inline bool is_int8(DType t) { return t == DType::kU8 || t == DType::kI8; }
inline bool is_scale_type(DType t) { return t == DType::kF32 || t == DType::kF16 || t == DType::kBF16; }

// For `supports`: "" when input i is absent or as required, else the reason.
inline std::string int8_reason(const NodeView& node, int i) {
  if (!node.has_input(i) || is_int8(node.input_dtype(i))) return "";
  return concat("input ", i, " is ", name_of(node.input_dtype(i)), "; u8 or i8 is required");
}
inline std::string scale_reason(const NodeView& node, int i) {
  if (!node.has_input(i) || is_scale_type(node.input_dtype(i))) return "";
  return concat("input ", i, " is ", name_of(node.input_dtype(i)), "; f32, f16 or bf16 is required");
}

// Input i, which holds one number or `each`; null data when `i` is negative or the input absent.
inline Operand operand(OpContext& ctx, int i, const char* what, int64_t each) {
  if (i < 0 || !ctx.has_input(i)) return {};
  const Tensor t = ctx.input(i);
  require(t.size() == 1 || t.size() == each, what, " has shape ", t.shape.to_string(), "; one value or ", each,
          " are required");
  return {t.data, t.dtype, t.size()};
}

}  // namespace cuvil
