#include "ep/placement.h"

#include <cstddef>

namespace cuvil::ep {
namespace {

struct Use {
  size_t node;
  size_t input;
};

class Solver {
 public:
  Solver(const std::vector<PlacementNode>& nodes, const std::vector<PlacementValue>& values)
      : nodes_(nodes), values_(values), producer_(values.size(), kNone), uses_(values.size()), cpu_(nodes.size()) {
    for (size_t n = 0; n < nodes.size(); ++n) {
      for (const int v : nodes[n].outputs)
        if (v != kAbsent) producer_[static_cast<size_t>(v)] = n;
      for (size_t i = 0; i < nodes[n].inputs.size(); ++i)
        if (nodes[n].inputs[i] != kAbsent) uses_[static_cast<size_t>(nodes[n].inputs[i])].push_back({n, i});
    }
  }

  std::vector<bool> solve() {
    for (size_t n = 0; n < nodes_.size(); ++n) cpu_[n] = nodes_[n].supported && nodes_[n].small_ints && inputs_fit(n);
    // Each pass only removes nodes, so this ends; a chain is settled by one pass in each direction.
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t n = nodes_.size(); n-- > 0;)
        if (cpu_[n] && !worth_it(n)) cpu_[n] = false, changed = true;
      for (size_t n = 0; n < nodes_.size(); ++n)
        if (cpu_[n] && !inputs_fit(n)) cpu_[n] = false, changed = true;
    }
    return cpu_;
  }

 private:
  static constexpr size_t kNone = static_cast<size_t>(-1);
  enum class Source { kConstant, kHost, kEither, kDevice };

  Source source(int value) const {
    const auto v = static_cast<size_t>(value);
    if (values_[v].constant) return Source::kConstant;
    const size_t n = producer_[v];
    // Graph inputs, outer values and results of nodes that are not ours may be on either side.
    if (n == kNone || !nodes_[n].supported) return values_[v].small_ints ? Source::kEither : Source::kDevice;
    if (cpu_[n]) return Source::kHost;
    for (size_t o = 0; o < nodes_[n].outputs.size(); ++o)
      if (nodes_[n].outputs[o] == value && nodes_[n].cpu_output[o]) return Source::kHost;
    return Source::kDevice;
  }

  bool inputs_fit(size_t n) const {
    for (const int v : nodes_[n].inputs)
      if (v != kAbsent && source(v) == Source::kDevice) return false;
    return true;
  }

  bool worth_it(size_t n) const {
    bool host_use = false, other_use = false;
    for (const int v : nodes_[n].outputs) {
      if (v == kAbsent) continue;
      if (values_[static_cast<size_t>(v)].unknown_use) other_use = true;
      for (const Use& use : uses_[static_cast<size_t>(v)]) {
        const PlacementNode& consumer = nodes_[use.node];
        const bool on_host = cpu_[use.node] || !consumer.supported || consumer.cpu_input[use.input];
        (on_host ? host_use : other_use) = true;
      }
    }
    if (host_use && !other_use) return true;
    // Some use wants the device. Then the node stays on the CPU only if its data is there for certain, and running it
    // on the device would need a copy too: of an input, or of the output for those that want it on the host.
    bool from_host = false, needs_copy = host_use;
    for (size_t i = 0; i < nodes_[n].inputs.size(); ++i) {
      if (nodes_[n].inputs[i] == kAbsent) continue;
      const Source s = source(nodes_[n].inputs[i]);
      if (s == Source::kEither) return false;
      if (s != Source::kHost) continue;
      from_host = true;
      needs_copy |= !nodes_[n].cpu_input[i];
    }
    return from_host && needs_copy;
  }

  const std::vector<PlacementNode>& nodes_;
  const std::vector<PlacementValue>& values_;
  std::vector<size_t> producer_;
  std::vector<std::vector<Use>> uses_;
  std::vector<bool> cpu_;
};

}  // namespace

std::vector<bool> cpu_preferred(const std::vector<PlacementNode>& nodes, const std::vector<PlacementValue>& values) {
  return Solver(nodes, values).solve();
}

}  // namespace cuvil::ep
