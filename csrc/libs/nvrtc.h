// NVRTC's functions, resolved at run time. The declarations are its stable C interface; its header is not needed.
#pragma once

#include <cstddef>

namespace cuvil::libs {

struct NvrtcProgram;              // opaque
constexpr int kNvrtcSuccess = 0;  // of the result codes that every function but error_string returns

struct Nvrtc {
  int (*version)(int* major, int* minor) = nullptr;
  int (*num_supported_archs)(int* count) = nullptr;
  int (*supported_archs)(int* archs) = nullptr;
  const char* (*error_string)(int code) = nullptr;
  int (*create_program)(NvrtcProgram** program, const char* source, const char* name, int num_headers,
                        const char* const* headers, const char* const* include_names) = nullptr;
  int (*destroy_program)(NvrtcProgram** program) = nullptr;
  int (*compile_program)(NvrtcProgram* program, int num_options, const char* const* options) = nullptr;
  int (*log_size)(NvrtcProgram* program, size_t* size) = nullptr;
  int (*log)(NvrtcProgram* program, char* text) = nullptr;
  int (*cubin_size)(NvrtcProgram* program, size_t* size) = nullptr;
  int (*cubin)(NvrtcProgram* program, char* image) = nullptr;
  int (*ptx_size)(NvrtcProgram* program, size_t* size) = nullptr;
  int (*ptx)(NvrtcProgram* program, char* image) = nullptr;
};

// The table, resolved on first use; throws Error(kMissingLibrary) naming nvidia-cuda-nvrtc when there is no NVRTC.
const Nvrtc& nvrtc();

}  // namespace cuvil::libs
