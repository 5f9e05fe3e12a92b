// CUDA Graphs of one session: captured on the session's stream, replayed by id, released with their memory.
#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "ep/capture_book.h"
#include "ep/device.h"
#include "ep/log.h"

namespace cuvil::ep {

class GraphCapture {
 public:
  GraphCapture(Arena& arena, int warm_ups, int max_graphs, const OrtLogger* logger);
  ~GraphCapture();
  GraphCapture(const GraphCapture&) = delete;
  GraphCapture& operator=(const GraphCapture&) = delete;

  bool is_captured(int id);
  // Starts a run of `id`: captures it when it is warm.
  void begin_run(int id, ComputeStream& stream);
  // Ends it. A captured run becomes a graph, is launched (capturing executed nothing), and replaces the least recently
  // used graph when there are too many. Throws when the capture was invalidated or the graph cannot be made.
  void end_run(int id, ComputeStream& stream, int64_t kernels, bool ok);
  void replay(int id, ComputeStream& stream);
  void release(int id);

 private:
  void finish_capture(int id, ComputeStream& stream, bool complete);
  void destroy(int id);

  Arena& arena_;
  const Log log_;
  std::mutex mutex_;  // ORT serialises runs, but not the question whether an id is captured
  CaptureBook book_;
  std::unordered_map<int, cudaGraphExec_t> graphs_;
  bool capturing_ = false;
};

}  // namespace cuvil::ep
