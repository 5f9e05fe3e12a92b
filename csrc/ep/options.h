// The session's EP options. Names follow ORT's CUDA EP where it has the same thing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "ep/ort.h"

namespace cuvil::ep {

struct Options {
  std::optional<int> device_id;                    // CUDA ordinal; the session's first device when absent
  bool enable_cuda_graph = false;                  // capture runs keyed by the run option gpu_graph_id
  int min_num_runs_before_cuda_graph_capture = 2;  // uncaptured runs before a capture, 2 to 6
  int max_captured_graphs = 16;                    // the least recently used graph goes when there are more
  void* user_compute_stream = nullptr;             // a cudaStream_t of the caller; nullptr: a stream of our own
  size_t gpu_mem_limit = 0;                        // bytes of device memory for this session's arena; 0: no limit
  bool use_tf32 = false;                           // fp32 products may be rounded to TF32
  bool stream_aware = false;                       // let ORT create streams and notifications
  bool shapes_on_cpu = true;                       // leave arithmetic on shapes to the CPU
  bool debug_sync = false;                         // synchronise after each node (also CUVIL_DEBUG_SYNC=1)
  std::string placement_file;                      // where GetCapability writes what runs where; "": nowhere
};

// Reads the entries `ep.cuvilexecutionprovider.<key>`. Throws Error(kInvalidArgument) for an unknown key, a value that
// does not parse, and options that contradict each other.
Options read_options(const OrtSessionOptions* session_options);

}  // namespace cuvil::ep
