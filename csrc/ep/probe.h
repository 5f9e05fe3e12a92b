// Does this library hold machine code for the current device?
#pragma once

#include <cuda_runtime_api.h>

#include <string>

namespace cuvil::ep {

cudaError_t probe_machine_code();
std::string built_for();  // "sm_80, sm_90"

}  // namespace cuvil::ep
