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

// A shape, a few indices, a scale; not token ids of a batch. Integers of unknown size are taken for small: they mostly
// are shapes, and the placement moves nothing to the CPU that the GPU has or wants.
constexpr int64_t kFewIntegers = 4096;
constexpr int64_t kFewFloats = 64;

bool is_small(DType type, const std::optional<Dims>& shape) {
  if (type == DType::kUndefined || type == DType::kString) return false;
  if (!shape) return !is_float(type);
  int64_t known = 1;
  for (const int64_t d : *shape) {
    if (d < 0 && is_float(type)) return false;
    known *= d > 0 ? d : 1;
  }
  return known <= (is_float(type) ? kFewFloats : kFewIntegers);
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

// ONNX Runtime puts a value where one of a node's inputs wants it, for all of that node's inputs: Squeeze(x, x) cannot
// have its data on the GPU and its axes on the host.
std::string divided_input(const PlacementNode& n) {
  for (size_t i = 0; i < n.inputs.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      if (n.inputs[i] != kAbsent && n.inputs[i] == n.inputs[j] && n.cpu_input[i] != n.cpu_input[j])
        return concat("inputs ", j, " and ", i, " are one value, wanted on the host and on the GPU");
  return "";
}

bool is_movable(const GraphNodeView& view, const PlacementNode& n) {
  bool reads_data = false;  // a kernel whose every output is made on the host looks at shapes alone
  for (int i = 0; i < view.num_outputs(); ++i) {
    if (!view.has_output(i)) continue;
    reads_data |= !n.cpu_output[static_cast<size_t>(i)];
    if (!is_small(view.output_dtype(i), view.output_shape(i))) return false;
  }
  if (!reads_data) return true;
  for (int i = 0; i < view.num_inputs(); ++i)
    if (view.has_input(i) && !n.cpu_input[static_cast<size_t>(i)] &&
        !is_small(view.input_dtype(i), view.input_shape(i)))
      return false;
  return true;
}

class Planner {
 public:
  Planner(const OrtGraph* graph, OrtEpGraphSupportInfo* support, const DeviceInfo& device) : support_(support) {
    size_t count = 0;
    ort_check(api().Graph_GetNumNodes(graph, &count));
    nodes_.resize(count);
    if (count) ort_check(api().Graph_GetNodes(graph, nodes_.data(), count));
    for (const OrtNode* node : nodes_) add(GraphNodeView(node, device), node);
  }

  std::vector<NodePlacement> claim(bool shapes_on_cpu) {
    std::vector<bool> on_cpu(nodes_.size());
    if (shapes_on_cpu) on_cpu = cpu_preferred(plan_nodes_, plan_values_);
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
    n.cpu_input.resize(static_cast<size_t>(view.num_inputs()));
    n.cpu_output.resize(static_cast<size_t>(view.num_outputs()));
    if (n.supported) {
      for (const int i : entry->cpu_inputs)
        if (i < view.num_inputs()) n.cpu_input[static_cast<size_t>(i)] = true;
      for (const int i : entry->cpu_outputs)
        if (i < view.num_outputs()) n.cpu_output[static_cast<size_t>(i)] = true;
    }
    for (int i = 0; i < view.num_inputs(); ++i)
      n.inputs.push_back(view.has_input(i) ? value_id(view.input_values()[static_cast<size_t>(i)]) : kAbsent);
    for (int i = 0; i < view.num_outputs(); ++i)
      n.outputs.push_back(view.has_output(i) ? value_id(view.output_values()[static_cast<size_t>(i)]) : kAbsent);
    if (const std::string why = divided_input(n); !why.empty()) {
      p.reason = why;
      n.supported = false;
      n.cpu_input.assign(n.cpu_input.size(), false);
      n.cpu_output.assign(n.cpu_output.size(), false);
    }
    n.movable = is_movable(view, n);
    for (int i = 0; i < view.num_outputs(); ++i) n.floats |= is_float(view.output_dtype(i));
    plan_nodes_.push_back(std::move(n));
    placements_.push_back(std::move(p));
  }

  int value_id(const OrtValueInfo* info) {
    const char* name = nullptr;
    ort_check(api().GetValueInfoName(info, &name));
    const auto [it, is_new] = ids_.emplace(name, static_cast<int>(plan_values_.size()));
    if (is_new) {
      PlacementValue v;
      ort_check(api().ValueInfo_IsConstantInitializer(info, &v.constant));
      plan_values_.push_back(v);
    }
    return it->second;
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

std::vector<NodePlacement> claim_nodes(const OrtGraph* graph, OrtEpGraphSupportInfo* support, const DeviceInfo& device,
                                       bool shapes_on_cpu) {
  return Planner(graph, support, device).claim(shapes_on_cpu);
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
