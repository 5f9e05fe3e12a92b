// CUDA devices of this machine, and one context object for each that a session uses.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "ep/arena.h"
#include "ops/op.h"

namespace cuvil::ep {

struct FoundDevice {
  DeviceInfo info;
  std::string pci_bus_id;  // "0000:17:00.0", lower case
  uint32_t pci_device_id = 0;
  size_t total_bytes = 0;
};

// Every CUDA device. Empty, with the reason in `why`, when there is no driver or no device.
std::vector<FoundDevice> find_cuda_devices(std::string* why);

// Throws Error(kNotImplemented) when this library holds no machine code that runs on the device.
void require_machine_code(const DeviceInfo& device);

using CudaContext = struct CUctx_st*;

// Makes a device current on this thread, and what was current before again at the end of the scope.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device);
  // For destructors, which run at the end of a process too, when the driver is gone already: then it does nothing.
  DeviceGuard(int device, std::nothrow_t) noexcept;
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  cudaError_t enter(int device);

  CudaContext previous_ = nullptr;
  bool changed_ = false;
};

// A stream that sessions enqueue work on. Shared between the session and whoever has to wait for its work.
struct ComputeStream {
  cudaStream_t handle = nullptr;
  int device = 0;
  bool owned = false;  // destroyed with this object
  ComputeStream(cudaStream_t h, int on, bool own) : handle(h), device(on), owned(own) {}
  ~ComputeStream();
  ComputeStream(const ComputeStream&) = delete;
  ComputeStream& operator=(const ComputeStream&) = delete;

  // Waits for the stream's work. Returns at once while a capture is on: waiting would invalidate it, and the stream was
  // idle when it began.
  cudaError_t synchronize();
  void begin_capture();  // waits for the stream first
  // nullptr when the capture was invalidated, with the reason in `error`.
  cudaGraph_t end_capture(cudaError_t* error);
  bool capturing() const { return capturing_; }
  // For a stream of the application that it captures itself around a run. True when it does; leave after the run.
  bool enter_outside_capture();
  void leave_outside_capture();
  // The stream that this thread captures a run on; nullptr when it does not. A copy of a captured run must be part of
  // the capture even where no memory tells which session it belongs to.
  static ComputeStream* captured_by_this_thread();

 private:
  void set_capturing(bool on);
  std::mutex mutex_;  // a wait and the start of a capture exclude each other
  std::atomic<bool> capturing_ = false;
};

// Memory of one session and the stream that orders it. Outlives the session when the application keeps outputs.
struct SessionMemory {
  std::unique_ptr<DeviceMemory> backend;
  std::unique_ptr<Arena> arena;
  std::atomic<std::shared_ptr<ComputeStream>> stream;  // null when the session is gone or leaves streams to ORT

  StreamTag tag() const {
    const auto s = stream.load();
    return s ? s->handle : kNoStream;
  }
};

// What the sessions on one GPU share.
class DeviceContext {
 public:
  explicit DeviceContext(DeviceInfo info);
  ~DeviceContext();

  const DeviceInfo& info() const { return info_; }
  // Memory that belongs to no session: OrtValues that the application makes itself.
  Arena& shared_arena() { return *shared_arena_; }
  // Page-locked host memory.
  Arena& pinned_arena() { return *pinned_arena_; }

  std::shared_ptr<ComputeStream> new_stream();
  std::shared_ptr<ComputeStream> adopt_stream(cudaStream_t user);
  std::shared_ptr<SessionMemory> new_session_memory(size_t limit);
  // The session memory that holds the address, or nullptr.
  std::shared_ptr<SessionMemory> owner_of(const void* p);

  // Waits for the work of every live stream.
  void synchronize_streams();

 private:
  template <typename T>
  static std::vector<std::shared_ptr<T>> live(std::vector<std::weak_ptr<T>>& all);

  const DeviceInfo info_;
  std::mutex mutex_;
  std::vector<std::weak_ptr<ComputeStream>> streams_;
  std::vector<std::weak_ptr<SessionMemory>> sessions_;
  std::unique_ptr<DeviceMemory> shared_memory_, pinned_memory_;
  std::unique_ptr<Arena> shared_arena_, pinned_arena_;
};

}  // namespace cuvil::ep
