#include "ep/min_cut.h"

#include <algorithm>

namespace cuvil::ep {

void MinCut::add_edge(int from, int to, int64_t capacity) {
  edges_of_[static_cast<size_t>(from)].push_back(static_cast<int>(edges_.size()));
  edges_.push_back({to, capacity});
  edges_of_[static_cast<size_t>(to)].push_back(static_cast<int>(edges_.size()));
  edges_.push_back({from, 0});
}

bool MinCut::find_levels() {
  level_.assign(edges_of_.size(), -1);
  level_[kSource] = 0;
  std::vector<int> queue{kSource};
  for (size_t i = 0; i < queue.size(); ++i) {
    const int v = queue[i];
    for (const int e : edges_of_[static_cast<size_t>(v)]) {
      const Edge& edge = edges_[static_cast<size_t>(e)];
      int& level = level_[static_cast<size_t>(edge.to)];
      if (edge.left == 0 || level >= 0) continue;
      level = level_[static_cast<size_t>(v)] + 1;
      queue.push_back(edge.to);
    }
  }
  return level_[kSink] >= 0;
}

// One augmenting path, without recursion: graphs may be chains of a hundred thousand nodes.
int64_t MinCut::push(int source, int64_t flow) {
  std::vector<int> path;
  int v = source;
  while (v != kSink) {
    size_t& next = next_[static_cast<size_t>(v)];
    const std::vector<int>& out = edges_of_[static_cast<size_t>(v)];
    while (next < out.size()) {
      const Edge& edge = edges_[static_cast<size_t>(out[next])];
      if (edge.left > 0 && level_[static_cast<size_t>(edge.to)] == level_[static_cast<size_t>(v)] + 1) break;
      ++next;
    }
    if (next < out.size()) {
      path.push_back(out[next]);
      v = edges_[static_cast<size_t>(out[next])].to;
      continue;
    }
    if (path.empty()) return 0;
    v = edges_[static_cast<size_t>(path.back() ^ 1)].to;  // a dead end: back, and never here again
    path.pop_back();
    ++next_[static_cast<size_t>(v)];
  }
  for (const int e : path) flow = std::min(flow, edges_[static_cast<size_t>(e)].left);
  for (const int e : path) {
    edges_[static_cast<size_t>(e)].left -= flow;
    edges_[static_cast<size_t>(e ^ 1)].left += flow;
  }
  return flow;
}

std::vector<bool> MinCut::source_side() {
  while (find_levels()) {
    next_.assign(edges_of_.size(), 0);
    while (push(kSource, kInfinite) > 0) {
    }
  }
  std::vector<bool> side(edges_of_.size());
  for (size_t v = 0; v < side.size(); ++v) side[v] = level_[v] >= 0;
  return side;
}

}  // namespace cuvil::ep
