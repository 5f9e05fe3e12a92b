#include "ep/placement.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ep/min_cut.h"

namespace cuvil::ep {
namespace {

// A copy to the host makes the host wait for the GPU. The tie-break counts only between equal numbers of copies.
constexpr int64_t kTieBreak = 1;
constexpr int64_t kToGpu = int64_t{1} << 32;
constexpr int64_t kToHost = 3 * kToGpu;

// In the cut, the source's side is the host.
class Planner {
 public:
  Planner(const std::vector<PlacementNode>& nodes, const std::vector<PlacementValue>& values)
      : nodes_(nodes), values_(values), vertex_(nodes.size(), MinCut::kSink), places_(values.size()) {}

  std::vector<bool> plan() {
    place_nodes();
    place_values();
    for (size_t v = 0; v < values_.size(); ++v)
      if (!values_[v].constant) add_crossings(places_[v]);
    const std::vector<bool> on_host = cut_.source_side();
    std::vector<bool> out(nodes_.size());
    for (size_t n = 0; n < nodes_.size(); ++n)
      out[n] = vertex_[n] != MinCut::kSource && on_host[static_cast<size_t>(vertex_[n])];
    return out;
  }

 private:
  struct Place {
    int producer = kUnknown;     // the vertex on whose side the value comes to be
    bool graph_input = false;    // no node makes it: its side is free, and no wait is involved
    std::vector<int> consumers;  // vertices on whose sides it is wanted
  };
  static constexpr int kUnknown = -1;

  // Vertices: a node whose side is free gets its own, the others are the host (source) or the GPU (sink).
  void place_nodes() {
    std::vector<bool> from_host(values_.size());
    for (size_t n = 0; n < nodes_.size(); ++n) {
      const PlacementNode& node = nodes_[n];
      if (!node.supported) vertex_[n] = MinCut::kSource;
      const bool derived = derives(node, from_host, /*from_data=*/false);
      if (!node.supported || !node.movable || (node.floats && !derives(node, from_host, /*from_data=*/true))) {
        mark(node, /*all=*/false, &from_host);
        continue;
      }
      vertex_[n] = cut_.add_vertex();
      // Between equal costs, what derives from host data stays there; all else goes to the GPU.
      if (derived) {
        cut_.add_edge(MinCut::kSource, vertex_[n], kTieBreak);
      } else {
        cut_.add_edge(vertex_[n], MinCut::kSink, kTieBreak);
      }
      mark(node, derived, &from_host);
    }
  }

  // `from_data`: by what it computes with. The target shape of a reshape says nothing about the reshaped values.
  bool derives(const PlacementNode& node, const std::vector<bool>& from_host, bool from_data) const {
    bool any = false, has_data = false;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const int v = node.inputs[i];
      if (v == kAbsent) continue;
      const bool is_data = !node.cpu_input[i];
      has_data |= is_data && !values_[static_cast<size_t>(v)].constant;
      any |= from_host[static_cast<size_t>(v)] && (is_data || !from_data);
    }
    return any || (from_data && !has_data && derives(node, from_host, false));
  }

  static void mark(const PlacementNode& node, bool all, std::vector<bool>* from_host) {
    for (size_t o = 0; o < node.outputs.size(); ++o)
      if (node.outputs[o] != kAbsent && node.supported && (all || node.cpu_output[o]))
        (*from_host)[static_cast<size_t>(node.outputs[o])] = true;
  }

  void place_values() {
    for (size_t n = 0; n < nodes_.size(); ++n) {
      const PlacementNode& node = nodes_[n];
      for (size_t o = 0; o < node.outputs.size(); ++o)
        if (node.outputs[o] != kAbsent)
          places_[static_cast<size_t>(node.outputs[o])].producer = node.cpu_output[o] ? MinCut::kSource : vertex_[n];
      for (size_t i = 0; i < node.inputs.size(); ++i)
        if (node.inputs[i] != kAbsent)
          places_[static_cast<size_t>(node.inputs[i])].consumers.push_back(node.cpu_input[i] ? MinCut::kSource
                                                                                             : vertex_[n]);
    }
    for (Place& p : places_) {
      if (p.producer != kUnknown) continue;
      p.graph_input = true;
      p.producer = cut_.add_vertex();
    }
  }

  // The value is copied at most once in each direction, whoever needs it: one paid edge, free ones from it.
  void add_crossings(const Place& p) {
    const auto is_free = [](int vertex) { return vertex != MinCut::kSource && vertex != MinCut::kSink; };
    if (p.consumers.empty()) return;
    if (!is_free(p.producer) && std::none_of(p.consumers.begin(), p.consumers.end(), is_free)) return;  // settled
    const int on_gpu = cut_.add_vertex(), on_host = cut_.add_vertex();
    cut_.add_edge(p.producer, on_gpu, kToGpu);
    cut_.add_edge(on_host, p.producer, p.graph_input ? kToGpu : kToHost);
    for (const int c : p.consumers) {
      cut_.add_edge(on_gpu, c, MinCut::kInfinite);
      cut_.add_edge(c, on_host, MinCut::kInfinite);
    }
  }

  const std::vector<PlacementNode>& nodes_;
  const std::vector<PlacementValue>& values_;
  MinCut cut_;
  std::vector<int> vertex_;  // by node
  std::vector<Place> places_;
};

}  // namespace

std::vector<bool> cpu_preferred(const std::vector<PlacementNode>& nodes, const std::vector<PlacementValue>& values) {
  return Planner(nodes, values).plan();
}

}  // namespace cuvil::ep
