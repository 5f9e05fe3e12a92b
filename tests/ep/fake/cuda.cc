// A CUDA runtime without a GPU, as unkind as the real one may be: nothing on a stream happens before somebody waits
// for it, device memory is unreadable by the host (a segmentation fault), and a capture breaks where CUDA's breaks.
// Only what csrc/ep and the test ops call.
#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "ep/probe.h"
#include "test_kernels.h"

using Job = std::function<void()>;
enum Kind { kKernel, kCopy, kCopyOfHost };
struct Node {  // of a graph
  Job job;
  Kind kind;
};

struct CUstream_st {
  std::deque<Job> pending;
  uint64_t done = 0, given = 0;
  bool capturing = false, invalid = false;
  std::vector<Node> captured;
};
struct CUevent_st {
  cudaStream_t stream = nullptr;
  uint64_t at = 0;
};
struct CUgraph_st {
  std::vector<Node> nodes;
};
struct CUgraphExec_st {
  std::vector<Node> nodes;
};

namespace {

constexpr size_t kDeviceBytes = size_t{4} << 30;

std::recursive_mutex lock;
using Lock = std::lock_guard<std::recursive_mutex>;
std::map<char*, size_t> device_blocks, pinned_blocks;
size_t device_used = 0;
CUstream_st default_stream;  // which no other stream waits for
std::vector<cudaStream_t> streams = {&default_stream};
thread_local cudaError_t last_error = cudaSuccess;
thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;
thread_local cudaStream_t thread_capture = nullptr;

cudaError_t done(cudaError_t code) {
  if (code != cudaSuccess) last_error = code;
  return code;
}

bool inside(const std::map<char*, size_t>& blocks, const void* p) {
  auto* address = static_cast<char*>(const_cast<void*>(p));
  auto it = blocks.upper_bound(address);
  return it != blocks.begin() && address < std::prev(it)->first + std::prev(it)->second;
}

// While the "device" works, its memory is open.
int open_depth = 0;
class DeviceWork {
 public:
  DeviceWork() {
    if (open_depth++ == 0) protect(PROT_READ | PROT_WRITE);
  }
  ~DeviceWork() {
    if (--open_depth == 0) protect(PROT_NONE);
  }

 private:
  static void protect(int mode) {
    for (const auto& [p, bytes] : device_blocks) mprotect(p, bytes, mode);
  }
};

void drain(cudaStream_t s, uint64_t until) {
  const DeviceWork open;
  while (s->done < until) {
    const Job job = std::move(s->pending.front());
    s->pending.pop_front();
    ++s->done;
    job();
  }
}

void drain_all() {
  for (cudaStream_t s : streams) drain(s, s->given);
}

cudaError_t give(cudaStream_t s, Job job, Kind kind = kKernel) {
  if (s->capturing) {
    s->captured.push_back({std::move(job), kind});
  } else {
    s->pending.push_back(std::move(job));
    ++s->given;
  }
  return cudaSuccess;
}

// Calls that a capturing thread must not make unless it said so.
bool forbidden() {
  if (!thread_capture || thread_mode == cudaStreamCaptureModeRelaxed) return false;
  thread_capture->invalid = true;
  return true;
}

char* map_pages(size_t bytes, int mode) {
  void* p = mmap(nullptr, bytes, mode, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return p == MAP_FAILED ? nullptr : static_cast<char*>(p);
}

}  // namespace

extern "C" {

// Environment: FAKE_CUDA_DEVICES=0 is a machine without a driver, FAKE_CUDA_NO_CODE=1 a GPU this library was not built
// for.
cudaError_t cudaGetDeviceCount(int* count) {
  const char* devices = std::getenv("FAKE_CUDA_DEVICES");
  *count = devices ? std::atoi(devices) : 1;
  return *count ? cudaSuccess : done(cudaErrorInsufficientDriver);
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  *p = cudaDeviceProp{};
  std::strcpy(p->name, "Fake GPU");
  p->major = 9, p->minor = 0;
  p->multiProcessorCount = 4;
  p->totalGlobalMem = kDeviceBytes;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int, int) {
  std::strcpy(text, "0000:FA:00.0");
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* d) {
  *d = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned int, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  // One device and one context that is always current: nothing is ever switched.
  static int context;
  static const auto get = +[](void** current) { return *current = &context, 0; };
  static const auto set = +[](void*) { return 0; };
  if (std::string_view(name) == "cuCtxGetCurrent") *function = reinterpret_cast<void*>(get);
  if (std::string_view(name) == "cuCtxSetCurrent") *function = reinterpret_cast<void*>(set);
  *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
const char* cudaGetErrorName(cudaError_t e) {
  switch (e) {
    case cudaErrorStreamCaptureUnsupported:
      return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated:
      return "cudaErrorStreamCaptureInvalidated";
    default:
      return "cudaErrorOfTheFake";
  }
}
const char* cudaGetErrorString(cudaError_t) { return "an error of the fake device"; }

cudaError_t cudaMalloc(void** p, size_t bytes) {
  const Lock guard(lock);
  if (forbidden()) return done(cudaErrorStreamCaptureUnsupported);
  const size_t pages = (bytes + 4095) / 4096 * 4096;
  char* block = device_used + pages > kDeviceBytes ? nullptr : map_pages(pages, open_depth ? PROT_WRITE : PROT_NONE);
  if (!block) return done(cudaErrorMemoryAllocation);
  device_blocks[block] = pages;
  device_used += pages;
  *p = block;
  return cudaSuccess;
}
cudaError_t cudaFree(void* p) {
  const Lock guard(lock);
  if (!p) return cudaSuccess;
  if (forbidden()) return done(cudaErrorStreamCaptureUnsupported);
  drain_all();
  const auto it = device_blocks.find(static_cast<char*>(p));
  if (it == device_blocks.end()) return done(cudaErrorInvalidValue);
  munmap(it->first, it->second);
  device_used -= it->second;
  device_blocks.erase(it);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total) {
  const Lock guard(lock);
  *total = kDeviceBytes;
  *free_bytes = kDeviceBytes - device_used;
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** p, size_t bytes, unsigned int) {
  const Lock guard(lock);
  const size_t pages = (bytes + 4095) / 4096 * 4096;
  char* block = map_pages(pages, PROT_READ | PROT_WRITE);
  if (!block) return done(cudaErrorMemoryAllocation);
  pinned_blocks[block] = pages;
  *p = block;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* p) {
  const Lock guard(lock);
  drain_all();
  const auto it = pinned_blocks.find(static_cast<char*>(p));
  if (it == pinned_blocks.end()) return done(cudaErrorInvalidValue);
  munmap(it->first, it->second);
  pinned_blocks.erase(it);
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* a, const void* p) {
  const Lock guard(lock);
  *a = cudaPointerAttributes{};
  a->type = inside(device_blocks, p)   ? cudaMemoryTypeDevice
            : inside(pinned_blocks, p) ? cudaMemoryTypeHost
                                       : cudaMemoryTypeUnregistered;
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* dst, const void* src, size_t bytes, cudaMemcpyKind kind) {
  const Lock guard(lock);
  const cudaError_t code = cudaMemcpyAsync(dst, src, bytes, kind, &default_stream);
  // What pageable memory or the device wrote to the device may still be on its way when the call returns.
  if (inside(pinned_blocks, src) || !inside(device_blocks, dst)) drain(&default_stream, default_stream.given);
  return code;
}
cudaError_t cudaMemcpyAsync(void* dst, const void* src, size_t bytes, cudaMemcpyKind, cudaStream_t s) {
  const Lock guard(lock);
  const bool to_pageable = !inside(device_blocks, dst) && !inside(pinned_blocks, dst);
  const bool from_pageable = !inside(device_blocks, src) && !inside(pinned_blocks, src);
  if (from_pageable && !s->capturing) {  // read before the call returns
    const auto* bytes_of = static_cast<const char*>(src);
    auto staged = std::make_shared<std::vector<char>>(bytes_of, bytes_of + bytes);
    return give(s, [=] { std::memcpy(dst, staged->data(), bytes); });
  }
  const bool on_device = inside(device_blocks, dst) && inside(device_blocks, src);
  give(s, [=] { std::memmove(dst, src, bytes); }, on_device ? kCopy : kCopyOfHost);
  if (to_pageable && !s->capturing) drain(s, s->given);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned int) {
  const Lock guard(lock);
  *s = new CUstream_st;
  streams.push_back(*s);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {
  const Lock guard(lock);
  drain(s, s->given);
  std::erase(streams, s);
  delete s;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
  const Lock guard(lock);
  if (!s) s = &default_stream;
  if (s->capturing) {
    s->invalid = true;
    return done(cudaErrorStreamCaptureUnsupported);
  }
  drain(s, s->given);
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned int) {
  const Lock guard(lock);
  if (!e->stream) return cudaSuccess;
  return give(s, [producer = e->stream, at = e->at] { drain(producer, at); });
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned int) {
  *e = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t e) {
  delete e;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
  const Lock guard(lock);
  e->stream = s;
  e->at = s->given;
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
  const Lock guard(lock);
  if (e->stream) drain(e->stream, e->at);
  return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, thread_mode);
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t s, cudaStreamCaptureStatus* status) {
  const Lock guard(lock);
  *status = s->capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode) {
  const Lock guard(lock);
  s->capturing = true;
  s->invalid = false;
  s->captured.clear();
  thread_capture = s;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t* graph) {
  const Lock guard(lock);
  s->capturing = false;
  thread_capture = nullptr;
  if (s->invalid) return done(cudaErrorStreamCaptureInvalidated);
  *graph = new CUgraph_st{std::move(s->captured)};
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  *executable = new CUgraphExec_st{graph->nodes};
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t s) {
  const Lock guard(lock);
  for (const Node& node : executable->nodes) give(s, node.job);
  return cudaSuccess;
}

}  // extern "C"

// For tests: device memory in use, and an application's own stream, which it captures and replays.
#define FAKE_EXPORT extern "C" __attribute__((visibility("default")))
FAKE_EXPORT size_t fake_device_bytes() {
  const Lock guard(lock);
  return device_used;
}
FAKE_EXPORT cudaStream_t fake_stream() {
  cudaStream_t s = nullptr;
  cudaStreamCreateWithFlags(&s, 0);
  return s;
}
FAKE_EXPORT void fake_begin_capture(cudaStream_t s) { cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal); }
FAKE_EXPORT cudaGraph_t fake_end_capture(cudaStream_t s) {
  cudaGraph_t graph = nullptr;
  cudaStreamEndCapture(s, &graph);
  return graph;
}
FAKE_EXPORT void fake_launch(cudaGraph_t graph, cudaStream_t s) {
  const Lock guard(lock);
  for (const Node& node : graph->nodes) give(s, node.job);
}

// What the driver tells about the nodes of a graph.
FAKE_EXPORT int cuGraphGetNodes(cudaGraph_t graph, Node** nodes, size_t* count) {
  *count = graph->nodes.size();
  for (size_t i = 0; nodes && i < *count; ++i) nodes[i] = &graph->nodes[i];
  return 0;
}
FAKE_EXPORT int cuGraphNodeGetType(const Node* node, int* type) { return *type = node->kind == kKernel ? 0 : 1, 0; }
FAKE_EXPORT int cuGraphMemcpyNodeGetParams(const Node* node, char* params) {
  const int type = node->kind == kCopy ? 2 : 1;  // device memory, or some of the host's
  for (const size_t memory_type_of_one_end : {32, 88 + 32})
    std::memcpy(params + memory_type_of_one_end, &type, sizeof type);
  return 0;
}

namespace cuvil::ep {

cudaError_t probe_machine_code() {
  return std::getenv("FAKE_CUDA_NO_CODE") ? cudaErrorNoKernelImageForDevice : cudaSuccess;
}
std::string built_for() { return "the fake device"; }

}  // namespace cuvil::ep

namespace cuvil::test {

void enqueue(Work work, const float* a, const float* b, float* y, int64_t n, cudaStream_t stream) {
  const Lock guard(lock);
  give(stream, [=] {
    for (int64_t i = 0; i < n; ++i) y[i] = work == Work::kTwice ? 2 * a[i] : work == Work::kPlus ? a[i] + b[i] : a[i];
  });
}

}  // namespace cuvil::test
