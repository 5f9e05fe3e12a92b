// The execution provider of one session.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <typeindex>
#include <unordered_map>
#include <vector>

#include "ep/capability.h"
#include "ep/capture.h"
#include "ep/device.h"
#include "ep/log.h"
#include "ep/options.h"
#include "ep/ort.h"

namespace cuvil::ep {

// What Factory::ReleaseEp deletes.
class EpBase : public OrtEp {
 public:
  EpBase() : OrtEp{} {}
  virtual ~EpBase() = default;
};

class Ep : public EpBase {
 public:
  Ep(DeviceContext& device, const OrtKernelRegistry* registry, Options options, const OrtLogger* logger,
     Log library_log);
  ~Ep() override;
  Ep(const Ep&) = delete;
  Ep& operator=(const Ep&) = delete;

  DeviceContext& device() { return device_; }
  const Options& options() const { return options_; }
  Arena& memory() { return *memory_->arena; }
  bool capturing() const { return stream_->capturing(); }
  std::unique_ptr<SharedState>& shared_slot(std::type_index type) { return shared_[type]; }

  // The stream that a kernel enqueues on. `named` is what ORT gives the kernel: null by default, another EP's stream
  // when that EP is stream-aware and comes first in the session.
  cudaStream_t stream_for_kernel(cudaStream_t named);
  // After each kernel: counts it, and throws when the device reports an error.
  void kernel_done(cudaStream_t stream);
  // Throws when the device has failed for good.
  void check_device() const;
  void run_failed() { run_ok_ = false; }

  // What OrtEpFactory::IsStreamAware has to say for the session being built on this thread.
  static bool stream_aware_on_this_thread();

 private:
  void set_callbacks();
  void get_capability(const OrtGraph* graph, OrtEpGraphSupportInfo* support);
  OrtAllocator* create_allocator(const OrtMemoryInfo* info);
  void run_start(const OrtRunOptions* options);
  void run_end(bool synchronize);
  void move_to(const std::shared_ptr<ComputeStream>& stream);
  void synchronize();

  DeviceContext& device_;
  const OrtKernelRegistry* registry_;
  const Options options_;
  const Log log_, library_log_;
  const Ort::MemoryInfo default_memory_;
  std::shared_ptr<SessionMemory> memory_;
  std::shared_ptr<ComputeStream> own_stream_;  // of this EP, or the user's
  std::shared_ptr<ComputeStream> stream_;      // where this run's kernels go
  std::unique_ptr<GraphCapture> capture_;      // null without enable_cuda_graph
  std::unordered_map<std::type_index, std::unique_ptr<SharedState>> shared_;
  std::vector<NodePlacement> subgraph_placements_;
  Ort::Status capability_failure_;  // ORT only logs an error of GetCapability; it is reported when the session is done
  int graph_id_ = kSkipCapture;
  int64_t kernels_run_ = 0;
  bool run_ok_ = true;
  bool captured_from_outside_ = false;  // the application captures its stream around this run
};

}  // namespace cuvil::ep
