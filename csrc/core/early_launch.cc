#include "core/early_launch.h"

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <string_view>

namespace cuvil {
namespace {

bool every_device_can() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) count = 0;
  for (int id = 0; id < count; ++id) {
    int major = 0;
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, id) != cudaSuccess || major < 9) return false;
  }
  return count > 0;
}

}  // namespace

bool early_launch() {
  static const bool on = [] {
    const char* wanted = std::getenv("CUVIL_EARLY_LAUNCH");
    return !(wanted && std::string_view(wanted) == "0") && every_device_can();
  }();
  return on;
}

}  // namespace cuvil
