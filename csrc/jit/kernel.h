// Compiled kernels of this process: source in, something to launch out.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

namespace cuvil::jit {

// The kernel `name` of `source` on a device of architecture `sm` (10 * major + minor), which must be the current one:
// from memory, else from the disk cache, else compiled (100 ms or so). Thread-safe; the handle lives as long as the
// process. Legal while a stream of this thread is being captured. Throws as `compile` does.
cudaKernel_t get_kernel(const std::string& source, const char* name, int sm);

}  // namespace cuvil::jit
