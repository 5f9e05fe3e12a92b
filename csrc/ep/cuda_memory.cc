#include "ep/cuda_memory.h"

#include <cuda_runtime_api.h>

#include "core/error.h"
#include "core/relaxed_capture.h"
#include "ep/device.h"

namespace cuvil::ep {
namespace {

// True when the memory is there, false when there is not enough.
bool succeeded(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return true;
  cudaGetLastError();
  if (code == cudaErrorMemoryAllocation) return false;
  fail(ErrorKind::kRuntime, what, ": ", cudaGetErrorName(code), " (", cudaGetErrorString(code),
       "); after an error of a kernel the GPU context of this process is lost");
}

}  // namespace

CudaMemory::CudaMemory(DeviceContext& context) : context_(context), kind_(concat("GPU ", context.info().id)) {}

void* CudaMemory::allocate(size_t bytes) {
  const DeviceGuard guard(context_.info().id);
  const RelaxedCapture relaxed;
  void* p = nullptr;
  return succeeded(cudaMalloc(&p, bytes), "allocating device memory") ? p : nullptr;
}

void CudaMemory::release(void* p) {
  const DeviceGuard guard(context_.info().id, std::nothrow);
  const RelaxedCapture relaxed;
  cudaFree(p);  // fails harmlessly when the process is ending and the driver is gone already
}

void CudaMemory::synchronize() { context_.synchronize_streams(); }

size_t CudaMemory::available() {
  const DeviceGuard guard(context_.info().id);
  size_t free_bytes = 0, total = 0;
  if (cudaMemGetInfo(&free_bytes, &total) != cudaSuccess) cudaGetLastError();
  return free_bytes;
}

void* PinnedMemory::allocate(size_t bytes) {
  const DeviceGuard guard(context_.info().id);
  const RelaxedCapture relaxed;
  void* p = nullptr;
  return succeeded(cudaHostAlloc(&p, bytes, cudaHostAllocPortable), "allocating page-locked host memory") ? p : nullptr;
}

void PinnedMemory::release(void* p) {
  const DeviceGuard guard(context_.info().id, std::nothrow);
  const RelaxedCapture relaxed;
  cudaFreeHost(p);
}

void PinnedMemory::synchronize() { context_.synchronize_streams(); }

}  // namespace cuvil::ep
