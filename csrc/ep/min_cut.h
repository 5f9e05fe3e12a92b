// Minimum cut of a directed graph (Dinic's algorithm): which vertices stay with the source.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace cuvil::ep {

class MinCut {
 public:
  static constexpr int kSource = 0, kSink = 1;
  static constexpr int64_t kInfinite = INT64_MAX / 4;

  MinCut() : edges_of_(2) {}
  int add_vertex() {
    edges_of_.emplace_back();
    return static_cast<int>(edges_of_.size()) - 1;
  }
  // `capacity` is paid when `from` is on the source's side and `to` is not.
  void add_edge(int from, int to, int64_t capacity);
  // Solves; then tells for each vertex whether it is on the source's side. Of several minimum cuts, the one with the
  // fewest vertices there.
  std::vector<bool> source_side();

 private:
  struct Edge {
    int to;
    int64_t left;
  };
  bool find_levels();
  int64_t push(int source, int64_t flow);

  std::vector<Edge> edges_;  // an edge and its reverse are neighbours
  std::vector<std::vector<int>> edges_of_;
  std::vector<int> level_;
  std::vector<size_t> next_;
};

}  // namespace cuvil::ep
