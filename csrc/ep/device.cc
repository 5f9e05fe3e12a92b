#include "ep/device.h"

#include <algorithm>
#include <cctype>

#include "ep/cuda_memory.h"
#include "ep/probe.h"

namespace cuvil::ep {
namespace {

// Drops those that are gone, so that the list does not grow: another provider's stream is adopted anew in every run.
template <typename T>
void add_live(std::vector<std::weak_ptr<T>>& all, const std::shared_ptr<T>& one) {
  std::erase_if(all, [](const std::weak_ptr<T>& w) { return w.expired(); });
  all.push_back(one);
}

// The driver's current context. Going back by number instead, with cudaSetDevice, would create a context on a GPU that
// the application never used: some 500 MB.
struct ContextApi {
  int (*get)(CudaContext*) = nullptr;
  int (*set)(CudaContext) = nullptr;
};

template <typename F>
void find_entry(const char* name, F* function) {
  cudaDriverEntryPointQueryResult found{};
  CUVIL_CUDA(
      cudaGetDriverEntryPointByVersion(name, reinterpret_cast<void**>(function), 12000, cudaEnableDefault, &found));
  require(found == cudaDriverEntryPointSuccess, "the CUDA driver has no ", name);
}

const ContextApi& context_api() {
  static const ContextApi api = [] {
    ContextApi found;
    find_entry("cuCtxGetCurrent", &found.get);
    find_entry("cuCtxSetCurrent", &found.set);
    return found;
  }();
  return api;
}

}  // namespace

std::vector<FoundDevice> find_cuda_devices(std::string* why) {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code != cudaSuccess || count == 0) {
    cudaGetLastError();  // not sticky; must not show up at somebody's next check
    *why = code == cudaSuccess ? "the CUDA driver shows no device" : cudaGetErrorString(code);
    return {};
  }
  std::vector<FoundDevice> found;
  for (int id = 0; id < count; ++id) {
    cudaDeviceProp p{};
    if (cudaGetDeviceProperties(&p, id) != cudaSuccess) {
      cudaGetLastError();
      continue;
    }
    FoundDevice d;
    d.info.id = id;
    d.info.sm = 10 * p.major + p.minor;
    d.info.sm_count = p.multiProcessorCount;
    d.info.l2_bytes = static_cast<size_t>(p.l2CacheSize);
    d.info.max_shared_per_block = p.sharedMemPerBlockOptin;
    d.info.name = p.name;
    d.total_bytes = p.totalGlobalMem;
    char bus[32] = {};
    if (cudaDeviceGetPCIBusId(bus, sizeof(bus), id) == cudaSuccess) d.pci_bus_id = bus;
    std::transform(d.pci_bus_id.begin(), d.pci_bus_id.end(), d.pci_bus_id.begin(),
                   [](unsigned char c) { return std::tolower(c); });
    found.push_back(std::move(d));
  }
  return found;
}

void require_machine_code(const DeviceInfo& device) {
  const DeviceGuard guard(device.id);
  const cudaError_t code = probe_machine_code();
  if (code == cudaSuccess) return;
  cudaGetLastError();
  if (code == cudaErrorNoKernelImageForDevice || code == cudaErrorInvalidDeviceFunction ||
      code == cudaErrorUnsupportedPtxVersion)
    fail(ErrorKind::kNotImplemented, "this build of libcuvil_ep.so has no machine code for ", device.name, " (sm_",
         device.sm, "); it was built for: ", built_for(), ". Rebuild it with this architecture added");
  cuda_check(code, "preparing the device");
}

DeviceGuard::DeviceGuard(int device) { CUVIL_CUDA(enter(device)); }

DeviceGuard::DeviceGuard(int device, std::nothrow_t) noexcept {
  try {
    if (enter(device) != cudaSuccess) cudaGetLastError();
  } catch (const Error&) {
  }
}

cudaError_t DeviceGuard::enter(int device) {
  if (context_api().get(&previous_) != 0) previous_ = nullptr;
  if (previous_) {
    int current = 0;
    if (const cudaError_t code = cudaGetDevice(&current); code != cudaSuccess) return code;
    if (current == device) return cudaSuccess;
  }
  // Without a context, the runtime's number is where this library last was on this thread: it says nothing.
  if (const cudaError_t code = cudaSetDevice(device); code != cudaSuccess) return code;
  // A thread that never used CUDA would get the first GPU's context at its own first call too, so that one may stay:
  // most applications have one GPU, and setting it anew for every kernel costs more than the launch.
  changed_ = previous_ != nullptr || device != 0;
  return cudaSuccess;
}

DeviceGuard::~DeviceGuard() {
  if (changed_) context_api().set(previous_);
}

namespace {
thread_local ComputeStream* captured_here = nullptr;
}  // namespace

ComputeStream* ComputeStream::captured_by_this_thread() { return captured_here; }

void ComputeStream::set_capturing(bool on) {
  capturing_ = on;
  captured_here = on ? this : nullptr;
}

void ComputeStream::leave_outside_capture() { set_capturing(false); }

ComputeStream::~ComputeStream() {
  const DeviceGuard guard(device, std::nothrow);
  if (owned) cudaStreamDestroy(handle);
}

cudaError_t ComputeStream::synchronize() {
  const std::lock_guard lock(mutex_);
  return capturing_ ? cudaSuccess : cudaStreamSynchronize(handle);
}

void ComputeStream::begin_capture() {
  const std::lock_guard lock(mutex_);
  CUVIL_CUDA(cudaStreamSynchronize(handle));
  CUVIL_CUDA(cudaStreamBeginCapture(handle, cudaStreamCaptureModeThreadLocal));
  set_capturing(true);
}

cudaGraph_t ComputeStream::end_capture(cudaError_t* error) {
  const std::lock_guard lock(mutex_);
  set_capturing(false);
  cudaGraph_t graph = nullptr;
  *error = cudaStreamEndCapture(handle, &graph);
  if (*error == cudaSuccess) return graph;
  cudaGetLastError();
  return nullptr;
}

bool ComputeStream::enter_outside_capture() {
  const std::lock_guard lock(mutex_);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  CUVIL_CUDA(cudaStreamIsCapturing(handle, &status));
  set_capturing(status == cudaStreamCaptureStatusActive);
  return capturing_;
}

DeviceContext::DeviceContext(DeviceInfo info) : info_(std::move(info)) {
  shared_memory_ = std::make_unique<CudaMemory>(*this);
  pinned_memory_ = std::make_unique<PinnedMemory>(*this);
  shared_arena_ = std::make_unique<Arena>(*shared_memory_, 0);
  pinned_arena_ = std::make_unique<Arena>(*pinned_memory_, 0, /*settled_when_freed=*/true);
}

DeviceContext::~DeviceContext() = default;

template <typename T>
std::vector<std::shared_ptr<T>> DeviceContext::live(std::vector<std::weak_ptr<T>>& all) {
  std::vector<std::shared_ptr<T>> out;
  std::erase_if(all, [&](const std::weak_ptr<T>& w) {
    std::shared_ptr<T> s = w.lock();
    if (s) out.push_back(std::move(s));
    return w.expired();
  });
  return out;
}

std::shared_ptr<ComputeStream> DeviceContext::new_stream() {
  const DeviceGuard guard(info_.id);
  cudaStream_t handle = nullptr;
  CUVIL_CUDA(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking));
  auto stream = std::make_shared<ComputeStream>(handle, info_.id, true);
  const std::lock_guard lock(mutex_);
  add_live(streams_, stream);
  return stream;
}

std::shared_ptr<ComputeStream> DeviceContext::adopt_stream(cudaStream_t user) {
  auto stream = std::make_shared<ComputeStream>(user, info_.id, false);
  const std::lock_guard lock(mutex_);
  add_live(streams_, stream);
  return stream;
}

std::shared_ptr<SessionMemory> DeviceContext::new_session_memory(size_t limit) {
  auto memory = std::make_shared<SessionMemory>();
  memory->backend = std::make_unique<CudaMemory>(*this);
  memory->arena = std::make_unique<Arena>(*memory->backend, limit);
  const std::lock_guard lock(mutex_);
  add_live(sessions_, memory);
  return memory;
}

std::shared_ptr<SessionMemory> DeviceContext::owner_of(const void* p) {
  std::vector<std::shared_ptr<SessionMemory>> sessions;
  {
    const std::lock_guard lock(mutex_);
    sessions = live(sessions_);
  }
  for (auto& s : sessions)
    if (s->arena->owns(p)) return s;
  return nullptr;
}

void DeviceContext::synchronize_streams() {
  const DeviceGuard guard(info_.id);
  std::vector<std::shared_ptr<ComputeStream>> streams;
  {
    const std::lock_guard lock(mutex_);
    streams = live(streams_);
  }
  for (const auto& s : streams) CUVIL_CUDA(s->synchronize());
}

}  // namespace cuvil::ep
