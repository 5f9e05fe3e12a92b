// GetCapability: which nodes of a graph this EP runs, and why not the others.
#pragma once

#include <string>
#include <vector>

#include "ep/ort.h"
#include "ops/op.h"

namespace cuvil::ep {

struct NodePlacement {
  std::string name, domain, op_type;
  bool taken = false;
  std::string reason;  // "" when taken
};

// Adds the nodes that the EP takes to `support`, and returns what happened to each node of `graph` (a main graph or
// the body of a control-flow node). Without `shapes_on_cpu` it takes whatever it can run. Idempotent: ORT asks more
// than once.
std::vector<NodePlacement> claim_nodes(const OrtGraph* graph, OrtEpGraphSupportInfo* support, const DeviceInfo& device,
                                       bool shapes_on_cpu);

// Writes {"nodes": [...]}. Throws Error(kInvalidArgument) when the file cannot be written.
void write_placement(const std::string& path, const std::vector<NodePlacement>& nodes);

}  // namespace cuvil::ep
