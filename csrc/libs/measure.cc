#include "libs/measure.h"

#include <algorithm>
#include <limits>

#include "core/cuda_check.h"

namespace cuvil::libs {
namespace {

struct GraphExec {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  ~GraphExec() {
    if (exec) cudaGraphExecDestroy(exec);
    if (graph) cudaGraphDestroy(graph);
  }
};

constexpr int kMaxRepeats = 20;
constexpr double kBudgetUs = 2000;  // of one timed graph launch
constexpr int kTimedLaunches = 3;

}  // namespace

Measurer::~Measurer() {
  if (start_) cudaEventDestroy(start_);
  if (stop_) cudaEventDestroy(stop_);
  if (stream_) cudaStreamDestroy(stream_);
}

double Measurer::microseconds(cudaStream_t origin, const Launch& launch) {
  if (!stream_) {
    CUVIL_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    CUVIL_CUDA(cudaEventCreate(&start_));
    CUVIL_CUDA(cudaEventCreate(&stop_));
  }
  CUVIL_CUDA(cudaStreamSynchronize(origin));
  try {
    return measure(launch);
  } catch (const Error&) {
    // The candidate does not run here, or cannot be captured: it loses. A capture left open is closed, and the error
    // code that is not sticky is cleared, so that the next candidate starts clean.
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(stream_, &status) != cudaSuccess || status != cudaStreamCaptureStatusNone) {
      cudaGraph_t abandoned = nullptr;
      cudaStreamEndCapture(stream_, &abandoned);
      if (abandoned) cudaGraphDestroy(abandoned);
    }
    cudaGetLastError();
    return std::numeric_limits<double>::infinity();
  }
}

double Measurer::measure(const Launch& launch) {
  const auto timed = [&](auto&& work) {
    CUVIL_CUDA(cudaEventRecord(start_, stream_));
    work();
    CUVIL_CUDA(cudaEventRecord(stop_, stream_));
    CUVIL_CUDA(cudaEventSynchronize(stop_));
    float ms = 0;
    CUVIL_CUDA(cudaEventElapsedTime(&ms, start_, stop_));
    return 1000.0 * ms;
  };
  // The first run loads the kernels, which a capture may not do; the second estimates.
  timed([&] { launch(stream_); });
  const double estimate = timed([&] { launch(stream_); });
  const int repeats = static_cast<int>(std::clamp(kBudgetUs / std::max(estimate, 1.0), 1.0, double{kMaxRepeats}));

  GraphExec graph;
  CUVIL_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < repeats; ++i) launch(stream_);
  CUVIL_CUDA(cudaStreamEndCapture(stream_, &graph.graph));
  CUVIL_CUDA(cudaGraphInstantiate(&graph.exec, graph.graph, 0));
  CUVIL_CUDA(cudaGraphLaunch(graph.exec, stream_));
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kTimedLaunches; ++i)
    best = std::min(best, timed([&] { CUVIL_CUDA(cudaGraphLaunch(graph.exec, stream_)); }));
  return best / repeats;
}

}  // namespace cuvil::libs
