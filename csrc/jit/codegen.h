// CUDA source of a pointwise kernel.
#pragma once

#include <string>

#include "jit/specialise.h"

namespace cuvil::jit {

constexpr char kKernelName[] = "cuvil_pointwise";

// A translation unit that compiles without any header and defines `extern "C" __global__ kKernelName(Params)`, where
// Params is the array of 64-bit words ParamSlots describes. The text is made of enums and validated numbers only.
// `program` must have passed `validate`.
std::string generate(const Program& program, const Specialisation& spec);

}  // namespace cuvil::jit
