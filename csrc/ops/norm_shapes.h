// Shape rules shared by the normalisation ops.
#pragma once

#include <string>

#include "ops/op.h"

namespace cuvil {

// Whether `s`, its leading ones dropped, equals the last dimensions of x and reaches no further left than `axis`.
// A symbolic dimension (-1) may equal anything.
inline bool is_suffix(const Dims& s, const Dims& x, int axis) {
  int first = 0;
  while (first < s.rank() && s[first] == 1) ++first;
  const int count = s.rank() - first;
  if (count > x.rank() - axis) return false;
  for (int i = 0; i < count; ++i) {
    const int64_t a = s[first + i], b = x[x.rank() - count + i];
    if (a != b && a != -1 && b != -1) return false;
  }
  return true;
}

// For `supports`: the reason why input i cannot be repeated over x[axis:], or "".
inline std::string suffix_reason(const NodeView& node, int i, int64_t axis) {
  const auto x = node.input_shape(0), s = node.input_shape(i);
  if (!x || !s || !node.has_input(i)) return "";
  if (axis < -x->rank() || axis >= x->rank()) return concat("axis ", axis, " is out of range for ", x->to_string());
  if (is_suffix(*s, *x, normalize_axis(axis, x->rank()))) return "";
  return concat("input ", i, " has shape ", s->to_string(),
                ", which is not repeated over the normalized dimensions of ", x->to_string());
}

// For `compute`: elements of an operand that is repeated over x[axis:].
inline int64_t suffix_size(const char* what, const Dims& s, const Dims& x, int axis) {
  if (!is_suffix(s, x, axis)) {
    fail(ErrorKind::kNotImplemented, what, " has shape ", s.to_string(),
         "; the last dimensions of the input are required, whose shape is ", x.to_string());
  }
  return s.size();
}

// For `supports`: the reason when present inputs and output 0 are not all of input 0's float type, or "".
inline std::string one_float_type(const NodeView& node) {
  const DType t = node.input_dtype(0);
  if (!is_float(t)) return concat("input 0 is ", name_of(t), "; f32, f16, bf16 or f64 is required");
  for (int i = 1; i < node.num_inputs(); ++i) {
    if (node.has_input(i) && node.input_dtype(i) != t) {
      return concat("input ", i, " is ", name_of(node.input_dtype(i)), " and input 0 is ", name_of(t),
                    "; one type is required");
    }
  }
  if (node.output_dtype(0) != t) {
    return concat("output 0 is ", name_of(node.output_dtype(0)), " and input 0 is ", name_of(t),
                  "; one type is required");
  }
  return "";
}

// x's shape with the dimensions from `axis` on replaced by ones: that of a row's statistics.
inline Dims statistics_shape(const Dims& x, int axis) {
  Dims s = x;
  for (int i = axis; i < s.rank(); ++i) s[i] = 1;
  return s;
}

}  // namespace cuvil
