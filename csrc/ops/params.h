// Small helpers for the glue of standard ops: host integers, type checks, parameters that moved from attributes to
// inputs between opsets.
#pragma once

#include <string>
#include <vector>

#include "ops/op.h"

namespace cuvil {

// Values of a host tensor of int32 or int64 (a shape, axes, pads).
inline std::vector<int64_t> read_ints(const Tensor& t) {
  std::vector<int64_t> v(static_cast<size_t>(t.size()));
  for (size_t i = 0; i < v.size(); ++i) {
    if (t.dtype == DType::kI64) {
      v[i] = t.as<int64_t>()[i];
    } else {
      require(t.dtype == DType::kI32, "an integer tensor is ", name_of(t.dtype), "; i32 or i64 is required");
      v[i] = t.as<int32_t>()[i];
    }
  }
  return v;
}

// The integers of an attribute (older opsets), of a host input (newer ones), or `fallback` when both are absent.
class IntsParam {
 public:
  IntsParam(const NodeView& node, const char* attr, int input, std::vector<int64_t> fallback = {})
      : input_(input), values_(std::move(fallback)) {
    std::vector<int64_t> v;
    if (node.find(attr, &v)) values_ = std::move(v);
  }
  std::vector<int64_t> get(OpContext& ctx) const {
    return ctx.has_input(input_) ? read_ints(ctx.input(input_)) : values_;
  }

 private:
  int input_;
  std::vector<int64_t> values_;
};

// Reason when input i is of a type that no kernel moves (string, sequence, 4-bit integers...), else "".
inline std::string require_movable(const NodeView& node, int i) {
  if (size_of(node.input_dtype(i)) != 0) return "";
  const DType t = node.input_dtype(i);
  return concat("input ", i, " is ", t == DType::kUndefined ? "not a tensor of a supported type" : name_of(t));
}

// `supports` of the operators that move the elements of input 0, whatever they mean.
inline std::string supports_any_type(const NodeView& node) { return require_movable(node, 0); }

// Fills `out` from `in`, which holds the same elements: nothing when ORT lent the input's buffer, else one copy.
inline void copy_elements(OpContext& ctx, const Tensor& in, const Tensor& out) {
  if (in.data == out.data || in.bytes() == 0) return;
  CUVIL_CUDA(cudaMemcpyAsync(out.data, in.data, in.bytes(), cudaMemcpyDeviceToDevice, ctx.stream()));
}

}  // namespace cuvil
