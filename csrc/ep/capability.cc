#include "ep/capability.h"

#include <cstdio>
#include <fstream>
#include <unordered_map>

#include "ep/node_view.h"
#include "ep/placement.h"
#include "ep/registry.h"
#include "ep/status.h"

namespace cuvil::ep {
namespace {

constexpr int64_t kSmall = 4096;  // elements: a shape, a few indices; not token ids of a batch

bool is_small_int(DType type, const std::optional<Dims>& shape) {
  switch (type) {
    case DType::kBool:
    case DType::kI8:
    case DType::kU8:
    case DType::kI16:
    case DType::kU16:
    case DType::kI32:
    case DType::kU32:
    case DType::kI64:
    case DType::kU64:
      break;
    default:
      return false;
  }
  if (!shape) return true;
  int64_t known = 1;
  for (const int64_t d : *shape) known *= d > 0 ? d : 1;
  return known <= kSmall;
}

// "" when the EP can run the node.
std::string refusal(const GraphNodeView& view, const OrtNode* node, OrtEpGraphSupportInfo* support,
                    const OpEntry** entry) {
  std::string why;
  *entry = find_op(view.domain(), view.op_type(), view.since_version(), &why);
  if (!*entry) return why;
  if (view.has_deep_tensor()) return concat("a tensor of rank above ", kMaxRank);
  try {
    why = (*entry)->supports ? (*entry)->supports(view) : "";
  } catch (const Error& e) {
    why = e.what();
  } catch (const Ort::Exception& e) {
    why = e.what();
  }
  if (!why.empty()) return why;
  const OrtKernelDef* kernel = nullptr;
  const Ort::Status status(ep_api().EpGraphSupportInfo_LookUpKernel(support, node, &kernel));
  if (!status.IsOK()) return status.GetErrorMessage();
  return kernel ? "" : "ONNX Runtime does not match the node with the registered kernel";
}

class Planner {
 public:
  Planner(const OrtGraph* graph, OrtEpGraphSupportInfo* support, const DeviceInfo& device) : support_(support) {
    size_t count = 0;
    ort_check(api().Graph_GetNumNodes(graph, &count));
    nodes_.resize(count);
    if (count) ort_check(api().Graph_GetNodes(graph, nodes_.data(), count));
    for (const OrtNode* node : nodes_) add(GraphNodeView(node, device), node);
    mark_subgraph_uses();
  }

  std::vector<NodePlacement> claim() {
    const std::vector<bool> on_cpu = cpu_preferred(plan_nodes_, plan_values_);
    for (size_t n = 0; n < nodes_.size(); ++n) {
      NodePlacement& p = placements_[n];
      if (!plan_nodes_[n].supported) continue;
      p.taken = !on_cpu[n];
      if (p.taken) {
        ort_check(ep_api().EpGraphSupportInfo_AddSingleNode(support_, nodes_[n]));
      } else {
        p.reason = "shape arithmetic on the CPU";
      }
    }
    return std::move(placements_);
  }

 private:
  void add(const GraphNodeView& view, const OrtNode* node) {
    NodePlacement p{view.name(), view.domain(), view.op_type(), false, {}};
    const OpEntry* entry = nullptr;
    p.reason = refusal(view, node, support_, &entry);
    PlacementNode n;
    n.supported = p.reason.empty();
    n.small_ints = view.num_outputs() > 0;
    for (int i = 0; i < view.num_inputs(); ++i) {
      n.inputs.push_back(view.has_input(i) ? value_id(view.input_values()[static_cast<size_t>(i)],
                                                      is_small_int(view.input_dtype(i), view.input_shape(i)))
                                           : kAbsent);
      n.cpu_input.push_back(false);
    }
    for (int i = 0; i < view.num_outputs(); ++i) {
      const bool present = view.has_output(i);
      const bool small = is_small_int(view.output_dtype(i), view.output_shape(i));
      n.outputs.push_back(present ? value_id(view.output_values()[static_cast<size_t>(i)], small) : kAbsent);
      n.cpu_output.push_back(false);
      if (present) n.small_ints = n.small_ints && small;
    }
    if (n.supported) {
      for (const int i : entry->cpu_inputs)
        if (static_cast<size_t>(i) < n.cpu_input.size()) n.cpu_input[static_cast<size_t>(i)] = true;
      for (const int i : entry->cpu_outputs)
        if (static_cast<size_t>(i) < n.cpu_output.size()) n.cpu_output[static_cast<size_t>(i)] = true;
    }
    // A kernel that reads no data of its inputs (the shape alone) already gives its result on the host.
    for (const bool host : n.cpu_output) n.small_ints = n.small_ints && !host;
    plan_nodes_.push_back(std::move(n));
    placements_.push_back(std::move(p));
  }

  int value_id(const OrtValueInfo* info, bool small) {
    const char* name = nullptr;
    ort_check(api().GetValueInfoName(info, &name));
    const auto [it, is_new] = ids_.emplace(name, static_cast<int>(plan_values_.size()));
    if (is_new) {
      PlacementValue v;
      bool constant = false, output = false;
      ort_check(api().ValueInfo_IsConstantInitializer(info, &constant));
      ort_check(api().ValueInfo_IsGraphOutput(info, &output));
      v.constant = constant;
      v.unknown_use = output;
      v.small_ints = small;
      plan_values_.push_back(v);
    }
    return it->second;
  }

  void mark_subgraph_uses() {
    for (const OrtNode* node : nodes_) {
      size_t count = 0;
      ort_check(api().Node_GetNumImplicitInputs(node, &count));
      if (count == 0) continue;
      std::vector<const OrtValueInfo*> implicit(count);
      ort_check(api().Node_GetImplicitInputs(node, implicit.data(), count));
      for (const OrtValueInfo* info : implicit) {
        const char* name = nullptr;
        ort_check(api().GetValueInfoName(info, &name));
        const auto it = ids_.find(name);
        if (it != ids_.end()) plan_values_[static_cast<size_t>(it->second)].unknown_use = true;
      }
    }
  }

  OrtEpGraphSupportInfo* support_;
  std::vector<const OrtNode*> nodes_;
  std::vector<PlacementNode> plan_nodes_;
  std::vector<PlacementValue> plan_values_;
  std::vector<NodePlacement> placements_;
  std::unordered_map<std::string, int> ids_;
};

std::string json_string(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof(escaped), "\\u%04x", static_cast<unsigned>(c));
      out += escaped;
    } else {
      out += c;
    }
  }
  return out + '"';
}

}  // namespace

std::vector<NodePlacement> claim_nodes(const OrtGraph* graph, OrtEpGraphSupportInfo* support,
                                       const DeviceInfo& device) {
  return Planner(graph, support, device).claim();
}

void write_placement(const std::string& path, const std::vector<NodePlacement>& nodes) {
  std::ofstream file(path, std::ios::trunc);
  file << "{\"nodes\": [";
  const char* separator = "\n";
  for (const NodePlacement& n : nodes) {
    file << separator << "{\"name\": " << json_string(n.name) << ", \"domain\": " << json_string(n.domain)
         << ", \"op_type\": " << json_string(n.op_type) << ", \"taken\": " << (n.taken ? "true" : "false")
         << ", \"reason\": " << json_string(n.reason) << "}";
    separator = ",\n";
  }
  file << "\n]}\n";
  file.close();
  require(!file.fail(), "option placement_file: cannot write '", path, "'");
}

}  // namespace cuvil::ep
