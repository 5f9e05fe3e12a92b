// NVRTC's functions, resolved at run time.
#pragma once

#include <nvrtc.h>

namespace cuvil::libs {

struct Nvrtc {
  decltype(nvrtcVersion)* version = nullptr;
  decltype(nvrtcGetNumSupportedArchs)* num_supported_archs = nullptr;
  decltype(nvrtcGetSupportedArchs)* supported_archs = nullptr;
  decltype(nvrtcGetErrorString)* error_string = nullptr;
  decltype(nvrtcCreateProgram)* create_program = nullptr;
  decltype(nvrtcDestroyProgram)* destroy_program = nullptr;
  decltype(nvrtcCompileProgram)* compile_program = nullptr;
  decltype(nvrtcGetProgramLogSize)* log_size = nullptr;
  decltype(nvrtcGetProgramLog)* log = nullptr;
  decltype(nvrtcGetCUBINSize)* cubin_size = nullptr;
  decltype(nvrtcGetCUBIN)* cubin = nullptr;
  decltype(nvrtcGetPTXSize)* ptx_size = nullptr;
  decltype(nvrtcGetPTX)* ptx = nullptr;
};

// The table, resolved on first use; throws Error(kMissingLibrary) naming nvidia-cuda-nvrtc when there is no NVRTC.
const Nvrtc& nvrtc();

}  // namespace cuvil::libs
