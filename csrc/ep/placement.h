// Which nodes stay on the CPU although the EP could run them: arithmetic on shapes. Pure, knows neither ORT nor CUDA.
//
// Shapes are born on the host (Shape, Size) and end on the host (the target of a reshape). Running the few integers in
// between on the GPU costs two copies, a wait for the GPU, and the chance to capture the run into a CUDA graph.
#pragma once

#include <string>
#include <vector>

namespace cuvil::ep {

struct PlacementNode {
  bool supported = false;        // the EP has a kernel that takes this node
  bool small_ints = false;       // every output is a small integer or bool tensor (or could be: the size is unknown)
  std::vector<int> inputs;       // value of each input, kAbsent where there is none
  std::vector<int> outputs;      // likewise
  std::vector<bool> cpu_input;   // by input index: the kernel wants it in host memory
  std::vector<bool> cpu_output;  // by output index: the kernel writes it to host memory
};

struct PlacementValue {
  bool constant = false;     // an initializer: available on both sides
  bool small_ints = false;   // as above
  bool unknown_use = false;  // a graph output, or used by a subgraph
};

constexpr int kAbsent = -1;

// For each node whether it should stay on the CPU. `nodes` in topological order; values are indices into `values`.
std::vector<bool> cpu_preferred(const std::vector<PlacementNode>& nodes, const std::vector<PlacementValue>& values);

}  // namespace cuvil::ep
