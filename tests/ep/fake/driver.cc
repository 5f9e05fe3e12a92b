// The calls of the CUDA driver that cuvil_onnx/runtime/cuda_driver.py makes, on the fake device of cuda.cc, so that the
// session's own streams and buffers are tested with the provider. As with the real driver, most need a current context.
#include <cuda_runtime_api.h>

#include <cstring>

#define DRIVER extern "C" __attribute__((visibility("default"))) int

namespace {

constexpr int kInvalidValue = 1, kInvalidContext = 201;
thread_local int contexts = 0;

int status(cudaError_t e) { return e == cudaSuccess ? 0 : kInvalidValue; }
void* host(const void* p) { return const_cast<void*>(p); }
void* device(unsigned long long address) { return reinterpret_cast<void*>(address); }

}  // namespace

#define NEEDS_CONTEXT \
  if (contexts == 0) return kInvalidContext

DRIVER cuInit(unsigned int) { return 0; }
DRIVER cuGetErrorName(int, const char** text) { return *text = "CUDA_ERROR_OF_THE_FAKE", 0; }
DRIVER cuGetErrorString(int code, const char** text) {
  return *text = code == kInvalidContext ? "no context is current" : "an error of the fake device", 0;
}
DRIVER cuDriverGetVersion(int* version) { return *version = 13000, 0; }
DRIVER cuDeviceGetCount(int* count) { return *count = 1, 0; }
DRIVER cuDeviceGet(int* device_of, int ordinal) { return *device_of = ordinal, ordinal == 0 ? 0 : kInvalidValue; }
DRIVER cuDeviceGetName(char* text, int, int) { return std::strcpy(text, "Fake GPU"), 0; }
DRIVER cuDeviceGetAttribute(int* value, int, int) { return *value = 9, 0; }
DRIVER cuDeviceTotalMem_v2(size_t* bytes, int) { return *bytes = size_t{4} << 30, 0; }
DRIVER cuDevicePrimaryCtxRetain(void** context, int) { return *context = &contexts, 0; }
DRIVER cuCtxPushCurrent_v2(void*) { return ++contexts, 0; }
DRIVER cuCtxPopCurrent_v2(void**) { return --contexts, 0; }
DRIVER cuMemGetInfo_v2(size_t* free_bytes, size_t* total) { return status(cudaMemGetInfo(free_bytes, total)); }

DRIVER cuStreamCreate(cudaStream_t* s, unsigned int flags) {
  NEEDS_CONTEXT;
  return status(cudaStreamCreateWithFlags(s, flags));
}
DRIVER cuStreamSynchronize(cudaStream_t s) {
  NEEDS_CONTEXT;
  return status(cudaStreamSynchronize(s));
}
DRIVER cuStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned int flags) {
  NEEDS_CONTEXT;
  return status(cudaStreamWaitEvent(s, e, flags));
}
DRIVER cuEventCreate(cudaEvent_t* e, unsigned int flags) {
  NEEDS_CONTEXT;
  return status(cudaEventCreateWithFlags(e, flags));
}
DRIVER cuEventRecord(cudaEvent_t e, cudaStream_t s) {
  NEEDS_CONTEXT;
  return status(cudaEventRecord(e, s));
}
DRIVER cuEventSynchronize(cudaEvent_t e) { return status(cudaEventSynchronize(e)); }
DRIVER cuEventElapsedTime(float* ms, cudaEvent_t, cudaEvent_t) { return *ms = 1, 0; }
DRIVER cuEventDestroy_v2(cudaEvent_t e) { return status(cudaEventDestroy(e)); }

DRIVER cuMemHostAlloc(void** p, size_t bytes, unsigned int flags) {
  NEEDS_CONTEXT;
  return status(cudaHostAlloc(p, bytes, flags));
}
DRIVER cuMemFreeHost(void* p) {
  NEEDS_CONTEXT;
  return status(cudaFreeHost(p));
}
DRIVER cuMemAlloc_v2(void** p, size_t bytes) {
  NEEDS_CONTEXT;
  return status(cudaMalloc(p, bytes));
}
DRIVER cuMemFree_v2(unsigned long long p) {
  NEEDS_CONTEXT;
  return status(cudaFree(device(p)));
}
DRIVER cuMemcpyHtoDAsync_v2(unsigned long long to, const void* from, size_t bytes, cudaStream_t s) {
  NEEDS_CONTEXT;
  return status(cudaMemcpyAsync(device(to), host(from), bytes, cudaMemcpyDefault, s));
}
DRIVER cuMemcpyDtoHAsync_v2(void* to, unsigned long long from, size_t bytes, cudaStream_t s) {
  NEEDS_CONTEXT;
  return status(cudaMemcpyAsync(to, device(from), bytes, cudaMemcpyDefault, s));
}
DRIVER cuMemcpyDtoDAsync_v2(unsigned long long to, unsigned long long from, size_t bytes, cudaStream_t s) {
  NEEDS_CONTEXT;
  return status(cudaMemcpyAsync(device(to), device(from), bytes, cudaMemcpyDefault, s));
}

DRIVER cuStreamBeginCapture_v2(cudaStream_t s, int) {
  NEEDS_CONTEXT;
  return status(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
}
DRIVER cuStreamEndCapture(cudaStream_t s, cudaGraph_t* graph) {
  NEEDS_CONTEXT;
  return status(cudaStreamEndCapture(s, graph));
}
DRIVER cuGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags) {
  NEEDS_CONTEXT;
  return status(cudaGraphInstantiate(executable, graph, flags));
}
DRIVER cuGraphLaunch(cudaGraphExec_t executable, cudaStream_t s) {
  NEEDS_CONTEXT;
  return status(cudaGraphLaunch(executable, s));
}
DRIVER cuGraphDestroy(cudaGraph_t graph) { return status(cudaGraphDestroy(graph)); }
DRIVER cuGraphExecDestroy(cudaGraphExec_t executable) { return status(cudaGraphExecDestroy(executable)); }

// Only measurements, and memory of unknown kinds, come here.
DRIVER cuMemsetD8Async(unsigned long long, unsigned char, size_t, cudaStream_t) { return kInvalidValue; }
DRIVER cuPointerGetAttribute(void*, int, unsigned long long) { return kInvalidValue; }
