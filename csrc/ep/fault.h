// Errors of the GPU that arrive late: a kernel that reads a wrong address is noticed by a later call.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

namespace cuvil::ep {

// The device's context is lost: nothing works in this process any more.
bool is_fault(cudaError_t error);

// What a user should read. `localised`: every node is waited for, so the node at hand is the one at fault.
std::string describe_fault(cudaError_t error, bool localised);

}  // namespace cuvil::ep
