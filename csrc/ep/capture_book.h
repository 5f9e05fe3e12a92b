// Which runs warm up, which are captured, which graph goes when there are too many. Pure bookkeeping, no CUDA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <unordered_map>
#include <vector>

namespace cuvil::ep {

constexpr int kSkipCapture = -1;  // the run option gpu_graph_id that asks for an eager run

class CaptureBook {
 public:
  enum class Plan { kEager, kWarmUp, kCapture };

  CaptureBook(int warm_ups, int max_graphs) : warm_ups_(warm_ups), max_graphs_(max_graphs) {}

  // What the run that starts now is. Not called for replays.
  Plan begin_run(int id) const;
  // An uncaptured run of `id` that executed `kernels` kernels; a failed one does not count.
  void warmed_up(int id, int64_t kernels, bool ok);
  // True when a captured run executed as many kernels as the warm-up before it: a node elsewhere that fails ends a run
  // early, and what was recorded until then must not become the graph.
  bool is_complete(int id, int64_t kernels) const;
  // `id` is captured now. Returns the graphs that must go, least recently used first.
  std::vector<int> captured(int id);
  bool is_captured(int id) const { return graphs_.count(id) != 0; }
  void replayed(int id);
  // Forgets the graph and its warm-ups: the next run of `id` may have other shapes. False when it is not captured.
  bool release(int id);
  // A capture that failed: warm up again.
  void failed(int id) { warm_.erase(id); }
  size_t size() const { return graphs_.size(); }

 private:
  struct WarmUp {
    int runs = 0;
    int64_t kernels = 0;
  };
  const int warm_ups_;
  const int max_graphs_;
  std::unordered_map<int, WarmUp> warm_;
  std::list<int> recent_;  // most recently used first
  std::unordered_map<int, std::list<int>::iterator> graphs_;
};

}  // namespace cuvil::ep
