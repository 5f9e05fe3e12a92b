// Device functions that every generated pointwise kernel starts with.
#pragma once

namespace cuvil::jit {

// Storage types, conversions between storage and computation, vector loads and stores. No header is included:
// NVRTC users have no include path.
extern const char kPreludeMemory[];

// `op_<instruction>` for every instruction that computes, on float, double and integers. f16 and bf16 are computed in
// float; the caller rounds.
extern const char kPreludeArithmetic[];
// Wants MATH_FN defined: how its costly functions are declared.
extern const char kPreludeMath[];

}  // namespace cuvil::jit
