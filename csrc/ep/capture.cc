#include "ep/capture.h"

#include "core/cuda_check.h"

namespace cuvil::ep {

GraphCapture::GraphCapture(Arena& arena, int warm_ups, int max_graphs, const OrtLogger* logger)
    : arena_(arena), log_(logger), book_(warm_ups, max_graphs) {}

GraphCapture::~GraphCapture() {
  for (auto& [id, graph] : graphs_) cudaGraphExecDestroy(graph);
}

bool GraphCapture::is_captured(int id) {
  if (id == kSkipCapture) return false;
  const std::lock_guard lock(mutex_);
  return book_.is_captured(id);
}

void GraphCapture::begin_run(int id, ComputeStream& stream) {
  const std::lock_guard lock(mutex_);
  if (book_.begin_run(id) != CaptureBook::Plan::kCapture) return;
  stream.begin_capture();
  capturing_ = true;
  arena_.begin_capture(id);
}

void GraphCapture::end_run(int id, ComputeStream& stream, int64_t kernels, bool ok) {
  const std::lock_guard lock(mutex_);
  if (capturing_) {
    finish_capture(id, stream, ok && book_.is_complete(id, kernels));
  } else if (id != kSkipCapture) {
    book_.warmed_up(id, kernels, ok);
  }
}

void GraphCapture::finish_capture(int id, ComputeStream& stream, bool complete) {
  capturing_ = false;
  cudaError_t error = cudaSuccess;
  cudaGraph_t graph = stream.end_capture(&error);
  cudaGraphExec_t executable = nullptr;
  if (graph && complete) error = cudaGraphInstantiate(&executable, graph, 0);
  if (graph) cudaGraphDestroy(graph);
  const bool kept = arena_.end_capture(executable != nullptr);
  if (executable && kept) error = cudaGraphLaunch(executable, stream.handle);
  if (!kept || error != cudaSuccess) {
    if (kept) arena_.release_graph(id);
    const bool again = executable && !kept;  // ORT runs until the graph is captured; nothing was executed
    if (executable) cudaGraphExecDestroy(executable);
    if (again) return;
    book_.failed(id);
    cudaGetLastError();
    require(complete, "the run failed while it was being captured into CUDA graph ", id, "; nothing was kept");
    fail(ErrorKind::kRuntime, "capturing CUDA graph ", id, " failed: ", cudaGetErrorName(error), " (",
         cudaGetErrorString(error), ")");
  }
  graphs_[id] = executable;
  for (const int evicted : book_.captured(id)) {
    log_.info(concat("releasing CUDA graph ", evicted, ", the least recently used (option max_captured_graphs)"));
    destroy(evicted);
  }
}

void GraphCapture::replay(int id, ComputeStream& stream) {
  const std::lock_guard lock(mutex_);
  const auto it = graphs_.find(id);
  require(it != graphs_.end(), "CUDA graph ", id, " is not captured");
  book_.replayed(id);
  CUVIL_CUDA(cudaGraphLaunch(it->second, stream.handle));
}

void GraphCapture::release(int id) {
  const std::lock_guard lock(mutex_);
  if (book_.release(id)) destroy(id);
}

void GraphCapture::destroy(int id) {
  const auto it = graphs_.find(id);
  if (it == graphs_.end()) return;
  cudaGraphExecDestroy(it->second);  // CUDA keeps what a running replay needs until it ends
  graphs_.erase(it);
  arena_.release_graph(id);
}

}  // namespace cuvil::ep
