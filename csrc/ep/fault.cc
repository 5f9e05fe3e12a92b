#include "ep/fault.h"

#include "core/error.h"

namespace cuvil::ep {

bool is_fault(cudaError_t error) {
  switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorIllegalInstruction:
    case cudaErrorInvalidPc:
    case cudaErrorHardwareStackError:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
      return true;
    default:
      return false;
  }
}

std::string describe_fault(cudaError_t error, bool localised) {
  const std::string what = concat(cudaGetErrorName(error), " (", cudaGetErrorString(error), ")");
  if (!is_fault(error)) return what;
  return concat(
      "a GPU kernel failed: ", what, ", ",
      localised ? "in this node" : "noticed here, caused by this node or one before it; CUVIL_DEBUG_SYNC=1 tells which",
      ". The GPU context of this process is lost: restart it");
}

}  // namespace cuvil::ep
