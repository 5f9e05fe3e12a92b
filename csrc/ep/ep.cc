#include "ep/ep.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "ep/allocator.h"
#include "ep/fault.h"
#include "ep/status.h"
#include "ep/sync_stream.h"

namespace cuvil::ep {
namespace {

constexpr const char* kGraphIdKey = "gpu_graph_id";

constexpr int kOutsideGraph = INT32_MAX;  // stands for every graph that the application captured itself

thread_local bool session_is_stream_aware = false;

int graph_id_of(const OrtRunOptions* options) {
  const char* text = options ? api().GetRunConfigEntry(options, kGraphIdKey) : nullptr;
  if (!text) return 0;
  int id = 0;
  const auto [end, error] = std::from_chars(text, text + std::strlen(text), id);
  require(error == std::errc() && *end == '\0', "run option ", kGraphIdKey, "='", text, "' is not an integer");
  return id;
}

}  // namespace

bool Ep::stream_aware_on_this_thread() { return session_is_stream_aware; }

Ep::Ep(DeviceContext& device, const OrtKernelRegistry* registry, Options options, const OrtLogger* logger,
       Log library_log)
    : device_(device),
      registry_(registry),
      options_(std::move(options)),
      log_(logger),
      library_log_(library_log),
      default_memory_(device_memory_info(device.info().id)),
      memory_(device.new_session_memory(options_.gpu_mem_limit)) {
  session_is_stream_aware = options_.stream_aware;
  own_stream_ = options_.user_compute_stream
                    ? device.adopt_stream(static_cast<cudaStream_t>(options_.user_compute_stream))
                    : device.new_stream();
  stream_ = own_stream_;
  if (!options_.stream_aware) memory_->stream = own_stream_;
  if (options_.enable_cuda_graph)
    capture_ = std::make_unique<GraphCapture>(*memory_->arena, options_.min_num_runs_before_cuda_graph_capture,
                                              options_.max_captured_graphs, logger);
  if (options_.debug_sync) log_.warning("debug_sync is on: every node waits for the GPU, runs are slow");
  set_callbacks();
}

Ep::~Ep() {
  try {
    const DeviceGuard guard(device_.info().id);
    own_stream_->synchronize();
    capture_.reset();
    shared_.clear();
    memory_->stream.store({});
    memory_->arena->retag(own_stream_->handle, kNoStream);
  } catch (...) {  // the device is lost; there is nothing to give back
  }
}

cudaStream_t Ep::stream_for_kernel(cudaStream_t named) {
  if (!named || named == stream_->handle) return stream_->handle;
  if (options_.stream_aware) return named;  // ORT's own streams, ordered by its notifications
  require(!capturing(), "a node of another execution provider runs in the session: CUDA graphs cannot be captured");
  move_to(device_.adopt_stream(named));
  return named;
}

// Continues on another stream, ordered after what the current one has been given.
void Ep::move_to(const std::shared_ptr<ComputeStream>& stream) {
  if (stream == stream_) return;
  cudaEvent_t event = nullptr;
  CUVIL_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  cudaError_t error = cudaEventRecord(event, stream_->handle);
  if (error == cudaSuccess) error = cudaStreamWaitEvent(stream->handle, event);
  cudaEventDestroy(event);
  CUVIL_CUDA(error);
  memory_->arena->retag(stream_->handle, stream->handle);
  memory_->stream = stream;
  stream_ = stream;
}

void Ep::kernel_done(cudaStream_t stream) {
  ++kernels_run_;
  cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess && options_.debug_sync && !capturing()) error = cudaStreamSynchronize(stream);
  if (error != cudaSuccess) fail(ErrorKind::kRuntime, describe_fault(error, options_.debug_sync));
}

void Ep::check_device() const {
  const cudaError_t error = cudaGetLastError();
  if (is_fault(error)) fail(ErrorKind::kRuntime, describe_fault(error, options_.debug_sync));
}

void Ep::run_start(const OrtRunOptions* options) {
  const DeviceGuard guard(device_.info().id);
  cudaGetLastError();  // somebody else's, on this thread
  kernels_run_ = 0;
  run_ok_ = true;
  captured_from_outside_ = options_.user_compute_stream && own_stream_->enter_outside_capture();
  if (captured_from_outside_) {
    memory_->arena->begin_capture(kOutsideGraph);
    return;
  }
  graph_id_ = capture_ ? graph_id_of(options) : kSkipCapture;
  if (capture_) capture_->begin_run(graph_id_, *own_stream_);
}

void Ep::run_end(bool synchronize_now) {
  const DeviceGuard guard(device_.info().id);
  // The other EP may destroy its stream any time after the run.
  if (stream_ != own_stream_) move_to(own_stream_);
  if (captured_from_outside_) {
    // Nobody tells when the application's graph is gone, so its memory stays until the session ends.
    const bool kept = memory_->arena->end_capture(true);
    own_stream_->leave_outside_capture();
    if (!kept)
      fail(ErrorKind::kRuntime,
           "a result of this run took memory that a CUDA graph of this session writes to: discard what the application "
           "captured and capture the run once more, its memory will then be its own");
    return;
  }
  if (capture_) capture_->end_run(graph_id_, *own_stream_, kernels_run_, run_ok_);
  // With ORT's streams nobody waits for them later when an output lies in another provider's memory.
  if (synchronize_now || options_.stream_aware) synchronize();
}

void Ep::synchronize() {
  const DeviceGuard guard(device_.info().id);
  const cudaError_t error = own_stream_->synchronize();
  if (error != cudaSuccess) fail(ErrorKind::kRuntime, describe_fault(error, options_.debug_sync));
  if (options_.stream_aware) device_.synchronize_streams();
}

void Ep::get_capability(const OrtGraph* graph, OrtEpGraphSupportInfo* support) {
  session_is_stream_aware = options_.stream_aware;
  std::vector<NodePlacement> nodes = claim_nodes(graph, support, device_.info(), options_.shapes_on_cpu);
  const OrtNode* parent = nullptr;
  ort_check(api().Graph_GetParentNode(graph, &parent));
  // ORT asks for the bodies of control-flow nodes first, for the main graph last; then once more from the start.
  std::vector<NodePlacement>& all = subgraph_placements_;
  all.insert(all.end(), nodes.begin(), nodes.end());
  if (parent) return;
  const auto taken = std::count_if(all.begin(), all.end(), [](const NodePlacement& n) { return n.taken; });
  log_.info(concat(taken, " of ", all.size(), " nodes run on GPU ", device_.info().id,
                   "; option placement_file=<path> writes which and why not the others"));
  if (!options_.placement_file.empty()) write_placement(options_.placement_file, all);
  all.clear();
}

OrtAllocator* Ep::create_allocator(const OrtMemoryInfo* info) {
  const OrtMemoryDevice* device = info ? ep_api().MemoryInfo_GetMemoryDevice(info) : nullptr;
  if (device && ep_api().MemoryDevice_GetMemoryType(device) == OrtDeviceMemoryType_HOST_ACCESSIBLE)
    return new ArenaAllocator(device_.pinned_arena(), pinned_memory_info(device_.info().id), library_log_);
  return new ArenaAllocator(memory_, device_memory_info(device_.info().id), library_log_);
}

void Ep::set_callbacks() {
  ort_version_supported = ORT_API_VERSION;
  GetName = [](const OrtEp*) noexcept { return kEpName; };
  GetCapability = [](OrtEp* self, const OrtGraph* graph, OrtEpGraphSupportInfo* support) noexcept -> OrtStatus* {
    auto* ep = static_cast<Ep*>(self);
    ep->capability_failure_ = Ort::Status(guarded([&] { ep->get_capability(graph, support); }));
    const Ort::Status& failure = ep->capability_failure_;
    return failure.IsOK() ? nullptr : api().CreateStatus(failure.GetErrorCode(), failure.GetErrorMessage().c_str());
  };
  GetKernelRegistry = [](OrtEp* self, const OrtKernelRegistry** registry) noexcept -> OrtStatus* {
    *registry = static_cast<Ep*>(self)->registry_;
    return nullptr;
  };
  OnRunStart = [](OrtEp* self, const OrtRunOptions* options) noexcept -> OrtStatus* {
    return guarded([&] { static_cast<Ep*>(self)->run_start(options); });
  };
  OnRunEnd = [](OrtEp* self, const OrtRunOptions*, bool sync) noexcept -> OrtStatus* {
    return guarded([&] { static_cast<Ep*>(self)->run_end(sync); });
  };
  CreateAllocator = [](OrtEp* self, const OrtMemoryInfo* info, OrtAllocator** out) noexcept -> OrtStatus* {
    return guarded([&] { *out = static_cast<Ep*>(self)->create_allocator(info); });
  };
  CreateSyncStreamForDevice = [](OrtEp* self, const OrtMemoryDevice*, OrtSyncStreamImpl** out) noexcept -> OrtStatus* {
    return guarded([&] {
      auto* ep = static_cast<Ep*>(self);
      *out = new SyncStream(ep->device_, ep->memory_);
    });
  };
  // Graph capture, the op's shared handles and the run's state are one per session.
  IsConcurrentRunSupported = [](OrtEp*, bool* is_supported) noexcept -> OrtStatus* {
    *is_supported = false;
    return nullptr;
  };
  Sync = [](OrtEp* self) noexcept -> OrtStatus* { return guarded([&] { static_cast<Ep*>(self)->synchronize(); }); };
  OnSessionInitializationEnd = [](OrtEp* self) noexcept -> OrtStatus* {
    auto* ep = static_cast<Ep*>(self);
    if (!ep->capability_failure_.IsOK()) return ep->capability_failure_.release();
    return guarded([&] {
      ep->synchronize();
      ep->memory_->arena->shrink();  // originals of packed weights
    });
  };
  GetDefaultMemoryDevice = [](const OrtEp* self, const OrtMemoryDevice** device) noexcept -> OrtStatus* {
    *device = ep_api().MemoryInfo_GetMemoryDevice(static_cast<const Ep*>(self)->default_memory_);
    return nullptr;
  };
  IsGraphCaptureEnabled = [](const OrtEp* self) noexcept { return static_cast<const Ep*>(self)->capture_ != nullptr; };
  IsGraphCaptured = [](const OrtEp* self, int id) noexcept {
    const auto* ep = static_cast<const Ep*>(self);
    return ep->capture_ && ep->capture_->is_captured(id);
  };
  ReplayGraph = [](OrtEp* self, int id) noexcept -> OrtStatus* {
    return guarded([&] {
      auto* ep = static_cast<Ep*>(self);
      const DeviceGuard guard(ep->device_.info().id);
      ep->capture_->replay(id, *ep->own_stream_);
    });
  };
  ReleaseCapturedGraph = [](OrtEp* self, int id) noexcept -> OrtStatus* {
    return guarded([&] {
      auto* ep = static_cast<Ep*>(self);
      if (ep->capture_) ep->capture_->release(id);
    });
  };
  GetGraphCaptureNodeAssignmentPolicy = [](const OrtEp*) noexcept {
    return OrtGraphCaptureNodeAssignmentPolicy_ALLOW_CPU_FOR_SHAPES;
  };
}

}  // namespace cuvil::ep
