// Which nodes stay on the CPU although the EP could run them: arithmetic on shapes. Pure, knows neither ORT nor CUDA.
//
// Shapes are born on the host (Shape, Size) and end on the host (the target of a reshape). Running the few integers in
// between on the GPU costs two copies, a wait for the GPU, and the chance to capture the run into a CUDA graph. So the
// side of every node that computes a few small values is chosen such that the fewest values cross between host and GPU:
// a minimum cut, in which one crossing of a value pays for all its users on the other side.
#pragma once

#include <string>
#include <vector>

namespace cuvil::ep {

struct PlacementNode {
  bool supported = false;        // the EP has a kernel that takes this node; else it runs on the CPU
  bool movable = false;          // computes little from little, so that the CPU does as well
  bool floats = false;           // but not integers: moved only when it derives from a shape
  std::vector<int> inputs;       // value of each input, kAbsent where there is none
  std::vector<int> outputs;      // likewise
  std::vector<bool> cpu_input;   // by input index: the kernel wants it in host memory
  std::vector<bool> cpu_output;  // by output index: the kernel writes it to host memory
};

struct PlacementValue {
  bool constant = false;  // an initializer: available on both sides
};

constexpr int kAbsent = -1;

// For each node whether it should stay on the CPU. `nodes` in topological order; inputs and outputs are indices into
// `values`.
std::vector<bool> cpu_preferred(const std::vector<PlacementNode>& nodes, const std::vector<PlacementValue>& values);

}  // namespace cuvil::ep
