#include "ep/probe.h"

namespace cuvil::ep {
namespace {

__global__ void probe() {}

}  // namespace

cudaError_t probe_machine_code() {
  cudaFuncAttributes attributes{};
  return cudaFuncGetAttributes(&attributes, probe);
}

std::string built_for() {
  std::string text;
  for (const int arch : {__CUDA_ARCH_LIST__}) text += (text.empty() ? "sm_" : ", sm_") + std::to_string(arch / 10);
  return text;
}

}  // namespace cuvil::ep
