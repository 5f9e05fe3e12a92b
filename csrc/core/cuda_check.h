// Turns CUDA error codes into cuvil::Error.
#pragma once

#include <cuda_runtime_api.h>

#include "core/error.h"

namespace cuvil {

inline void cuda_check(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return;
  fail(code == cudaErrorMemoryAllocation ? ErrorKind::kOutOfMemory : ErrorKind::kRuntime, what, ": ",
       cudaGetErrorName(code), " (", cudaGetErrorString(code), ")");
}

}  // namespace cuvil

#define CUVIL_CUDA(call) ::cuvil::cuda_check((call), #call)
