// CUDA source to machine code, by NVRTC.
#pragma once

#include <string>
#include <vector>

namespace cuvil::jit {

// What to compile for: the device's own architecture, else its nearest relative that this NVRTC knows.
struct Target {
  std::string arch;   // "sm_90" gives a cubin, "compute_90" PTX for the driver to finish
  std::string nvrtc;  // "13.0", part of the cache key
};

// `sm` is 10 * major + minor. Throws Error(kMissingLibrary) without NVRTC, Error(kNotImplemented) when the device is
// older than everything NVRTC supports.
Target target_for(int sm);

// The options of every compilation, part of the cache key: no FMA contraction, IEEE division and square root, denormals
// kept, so that a fused chain rounds exactly as the ops it replaces.
const std::vector<std::string>& compile_options();

// A cubin, or zero-terminated PTX. Throws Error(kRuntime) with NVRTC's log: always a defect of ours, since the
// source is generated from a validated program.
std::vector<char> compile(const std::string& source, const Target& target);

}  // namespace cuvil::jit
