#include "ep/capture_book.h"

namespace cuvil::ep {

CaptureBook::Plan CaptureBook::begin_run(int id) const {
  if (id == kSkipCapture) return Plan::kEager;
  const auto it = warm_.find(id);
  return it != warm_.end() && it->second.runs >= warm_ups_ ? Plan::kCapture : Plan::kWarmUp;
}

void CaptureBook::warmed_up(int id, int64_t kernels, bool ok) {
  if (!ok) return;
  WarmUp& w = warm_[id];
  ++w.runs;
  w.kernels = kernels;
}

bool CaptureBook::is_complete(int id, int64_t kernels) const {
  const auto it = warm_.find(id);
  return it != warm_.end() && it->second.kernels == kernels;
}

std::vector<int> CaptureBook::captured(int id) {
  recent_.push_front(id);
  graphs_[id] = recent_.begin();
  std::vector<int> evicted;
  while (graphs_.size() > static_cast<size_t>(max_graphs_)) {
    const int oldest = recent_.back();
    recent_.pop_back();
    graphs_.erase(oldest);
    evicted.push_back(oldest);
  }
  return evicted;
}

void CaptureBook::replayed(int id) {
  const auto it = graphs_.find(id);
  if (it != graphs_.end()) recent_.splice(recent_.begin(), recent_, it->second);
}

bool CaptureBook::release(int id) {
  warm_.erase(id);
  const auto it = graphs_.find(id);
  if (it == graphs_.end()) return false;
  recent_.erase(it->second);
  graphs_.erase(it);
  return true;
}

}  // namespace cuvil::ep
