#include "ep/arena.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "core/error.h"

namespace cuvil::ep {
namespace {

// Requests up to kSmallRequest share 2 MiB segments, so that a bias does not cut up a segment of activations.
constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kSmallRequest = kMiB;
constexpr size_t kSmallSegment = 2 * kMiB;
constexpr size_t kLargeSegment = 20 * kMiB;

thread_local std::string last_failure;

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

size_t segment_size(size_t bytes, bool small) {
  if (small) return kSmallSegment;
  return bytes < kLargeSegment / 2 ? kLargeSegment : round_up(bytes, 2 * kMiB);
}

}  // namespace

Arena::Arena(DeviceMemory& memory, size_t limit, bool settled_when_freed)
    : memory_(memory), settled_when_freed_(settled_when_freed) {
  stats_.limit = limit;
}

Arena::~Arena() {
  for (auto& [address, segment] : segments_) memory_.release(address);
}

void* Arena::allocate(size_t bytes, StreamTag stream) {
  if (bytes == 0) return nullptr;
  const std::lock_guard lock(mutex_);
  if (bytes > SIZE_MAX / 2) out_of_memory(bytes);
  const size_t want = round_up(bytes, kArenaAlignment);
  const bool small = want <= kSmallRequest;
  Block* b = find_any(stream, small, want);
  if (!b) b = grow(want, small);
  if (!b) {
    // Blocks that other streams left behind, and segments of the other size class, may be enough.
    settle_all();
    b = find_any(stream, small, want);
    if (!b) {
      release_idle_segments();
      b = grow(want, small);
    }
  }
  if (!b) out_of_memory(bytes);
  take(b, want, stream);
  return b->address;
}

Arena::Block* Arena::find(Pool pool, StreamTag stream, bool small, size_t bytes) {
  const auto it = free_.find({pool, stream, small});
  if (it == free_.end()) return nullptr;
  Block key;
  key.bytes = bytes;
  const auto best = it->second.lower_bound(&key);
  return best == it->second.end() ? nullptr : *best;
}

Arena::Block* Arena::find_captured(bool small, size_t bytes) {
  const auto it = free_.find({Pool::kCaptured, kNoStream, small});
  if (it == free_.end()) return nullptr;
  Block key;
  key.bytes = bytes;
  for (auto b = it->second.lower_bound(&key); b != it->second.end(); ++b)
    if (graphs_share_ || (*b)->graphs == std::vector<int>{capturing_}) return *b;
  return nullptr;
}

Arena::Block* Arena::find_any(StreamTag stream, bool small, size_t bytes) {
  if (capturing_ != kNotCapturing)
    if (Block* b = find_captured(small, bytes)) return b;
  Block* settled = find(Pool::kSettled, kNoStream, small, bytes);
  if (stream != kNoStream) {
    Block* ordered = find(Pool::kOrdered, stream, small, bytes);
    if (ordered && settled) return BySize{}(ordered, settled) ? ordered : settled;
    return ordered ? ordered : settled;
  }
  if (settled || !find(Pool::kUnsettled, kNoStream, small, bytes)) return settled;
  settle_all();
  return find(Pool::kSettled, kNoStream, small, bytes);
}

Arena::Block* Arena::grow(size_t bytes, bool small) {
  const size_t usual = segment_size(bytes, small);
  if (Block* b = add_segment(usual, small)) return b;
  return usual > bytes ? add_segment(bytes, small) : nullptr;
}

Arena::Block* Arena::add_segment(size_t bytes, bool small) {
  if (stats_.limit && stats_.reserved + bytes > stats_.limit) return nullptr;
  char* address = static_cast<char*>(memory_.allocate(bytes));
  if (!address) return nullptr;
  stats_.reserved += bytes;
  ++stats_.num_extensions;
  auto segment = std::make_unique<Segment>();
  segment->bytes = bytes;
  segment->small = small;
  auto block = std::make_unique<Block>();
  Block* b = block.get();
  b->address = address;
  b->bytes = bytes;
  b->segment = segment.get();
  b->settled = true;
  segment->blocks.emplace(address, std::move(block));
  segments_.emplace(address, std::move(segment));
  insert_free(b);
  return b;
}

void Arena::take(Block* b, size_t bytes, StreamTag stream) {
  remove_free(b);
  if (b->bytes - bytes >= kArenaAlignment) {
    auto rest = std::make_unique<Block>(*b);
    rest->address = b->address + bytes;
    rest->bytes = b->bytes - bytes;
    b->bytes = bytes;
    b->used = true;  // before the rest looks for neighbours to join
    Block* r = rest.get();
    b->segment->blocks.emplace(r->address, std::move(rest));
    insert_free(r);
  }
  b->used = true;
  b->settled = false;
  b->async_use = false;
  b->stream = stream;
  if (capturing_ != kNotCapturing) add_graph(*b, capturing_);
  used_.emplace(b->address, b);
  stats_.in_use += b->bytes;
  stats_.max_in_use = std::max(stats_.max_in_use, stats_.in_use);
  stats_.max_alloc = std::max(stats_.max_alloc, b->bytes);
  ++stats_.num_allocs;
}

void Arena::free(void* p) {
  if (!p) return;
  const std::lock_guard lock(mutex_);
  const auto it = used_.find(p);
  require(it != used_.end(), "free of ", p, ", which this arena did not hand out or which is free already");
  Block* b = it->second;
  used_.erase(it);
  stats_.in_use -= b->bytes;
  b->used = false;
  b->settled = b->stream == kNoStream && settled_when_freed_ && !b->async_use;
  if (capturing_ != kNotCapturing) add_graph(*b, capturing_);
  insert_free(b);
}

Arena::PoolKey Arena::pool_of(const Block& b) const {
  const bool small = b.segment->small;
  if (!b.graphs.empty()) return {Pool::kCaptured, kNoStream, small};
  if (b.settled) return {Pool::kSettled, kNoStream, small};
  if (b.stream != kNoStream) return {Pool::kOrdered, b.stream, small};
  return {Pool::kUnsettled, kNoStream, small};
}

void Arena::insert_free(Block* b) {
  auto& siblings = b->segment->blocks;
  const auto joinable = [&](const Block& o) { return !o.used && pool_of(o) == pool_of(*b) && o.graphs == b->graphs; };
  auto it = siblings.find(b->address);
  if (const auto next = std::next(it); next != siblings.end() && joinable(*next->second)) {
    remove_free(next->second.get());
    b->bytes += next->second->bytes;
    siblings.erase(next);
  }
  if (it != siblings.begin()) {
    Block* previous = std::prev(it)->second.get();
    if (joinable(*previous)) {
      remove_free(previous);
      previous->bytes += b->bytes;
      siblings.erase(it);
      b = previous;
    }
  }
  free_[pool_of(*b)].insert(b);
}

void Arena::remove_free(Block* b) {
  const auto it = free_.find(pool_of(*b));
  if (it == free_.end()) return;
  it->second.erase(b);
  if (it->second.empty()) free_.erase(it);
}

std::vector<Arena::Block*> Arena::all_blocks() const {
  std::vector<Block*> out;
  for (const auto& [address, segment] : segments_)
    for (const auto& [a, block] : segment->blocks) out.push_back(block.get());
  return out;
}

// Changes blocks that may be free, keeping the pools right. Free ones are taken out first, all of them, since joining
// neighbours deletes blocks; then put back one by one.
template <typename Change>
void Arena::rebuild_free(const std::vector<Block*>& blocks, Change&& change) {
  std::vector<std::pair<Segment*, char*>> free_again;
  for (Block* b : blocks) {
    if (!b->used) {
      remove_free(b);
      free_again.emplace_back(b->segment, b->address);
    }
    change(*b);
  }
  // Put back as used first so that no half-changed neighbour is joined.
  for (const auto& [segment, address] : free_again) segment->blocks.at(address)->used = true;
  for (const auto& [segment, address] : free_again) {
    Block* b = segment->blocks.at(address).get();
    b->used = false;
    insert_free(b);
  }
}

void Arena::settle_all() {
  memory_.synchronize();
  std::vector<Block*> waiting;
  for (Block* b : all_blocks())
    if (!b->used && !b->settled && b->graphs.empty()) waiting.push_back(b);
  rebuild_free(waiting, [](Block& b) { b.settled = true; });
}

void Arena::release_idle_segments() {
  for (auto it = segments_.begin(); it != segments_.end();) {
    Segment& s = *it->second;
    Block* first = s.blocks.begin()->second.get();
    if (s.blocks.size() == 1 && !first->used && first->settled && first->graphs.empty()) {
      remove_free(first);
      memory_.release(it->first);
      stats_.reserved -= s.bytes;
      ++stats_.num_shrinkages;
      it = segments_.erase(it);
    } else {
      ++it;
    }
  }
}

void Arena::shrink() {
  const std::lock_guard lock(mutex_);
  settle_all();
  release_idle_segments();
}

void Arena::add_graph(Block& b, int graph) {
  const auto at = std::lower_bound(b.graphs.begin(), b.graphs.end(), graph);
  if (at != b.graphs.end() && *at == graph) return;
  if (b.graphs.empty()) stats_.captured += b.bytes;
  b.graphs.insert(at, graph);
}

void Arena::begin_capture(int graph) {
  const std::lock_guard lock(mutex_);
  require(capturing_ == kNotCapturing, "a capture began inside another one");
  capturing_ = graph;
}

bool Arena::end_capture(bool keep) {
  const std::lock_guard lock(mutex_);
  const int graph = capturing_;
  capturing_ = kNotCapturing;
  for (const auto& [address, b] : used_) {
    if (b->graphs.size() < 2 || !std::binary_search(b->graphs.begin(), b->graphs.end(), graph)) continue;
    graphs_share_ = false;
    keep = false;
  }
  if (!keep) drop_graph(graph);
  return keep;
}

void Arena::release_graph(int graph) {
  const std::lock_guard lock(mutex_);
  drop_graph(graph);
}

void Arena::drop_graph(int graph) {
  std::vector<Block*> held;
  for (Block* b : all_blocks())
    if (std::binary_search(b->graphs.begin(), b->graphs.end(), graph)) held.push_back(b);
  rebuild_free(held, [&](Block& b) {
    b.graphs.erase(std::lower_bound(b.graphs.begin(), b.graphs.end(), graph));
    if (b.graphs.empty()) stats_.captured -= b.bytes;
    b.settled = false;  // the graph's last replay may still be running on the block's stream
  });
}

void Arena::retag(StreamTag from, StreamTag to) {
  const std::lock_guard lock(mutex_);
  std::vector<Block*> changed;
  for (Block* b : all_blocks())
    if (b->stream == from && from != kNoStream) changed.push_back(b);
  rebuild_free(changed, [&](Block& b) {
    b.stream = to;
    if (to == kNoStream && !b.used) b.settled = true;
  });
}

void Arena::note_async_use(const void* p) {
  const std::lock_guard lock(mutex_);
  if (Block* b = block_at(p)) b->async_use = true;
}

Arena::Block* Arena::block_at(const void* p) const {
  char* address = static_cast<char*>(const_cast<void*>(p));
  auto segment = segments_.upper_bound(address);
  if (segment == segments_.begin()) return nullptr;
  --segment;
  if (address >= segment->first + segment->second->bytes) return nullptr;
  auto block = segment->second->blocks.upper_bound(address);
  return std::prev(block)->second.get();
}

bool Arena::owns(const void* p) const {
  const std::lock_guard lock(mutex_);
  return p && block_at(p) != nullptr;
}

ArenaStats Arena::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

std::string Arena::take_last_failure() { return std::exchange(last_failure, {}); }

void Arena::out_of_memory(size_t bytes) {
  last_failure = concat("out of memory on ", memory_.kind(), ": ", bytes, " bytes wanted, ", stats_.in_use,
                        " in use by this session (", stats_.captured, " held by captured CUDA graphs, ",
                        stats_.reserved, " reserved), limit ", stats_.limit ? std::to_string(stats_.limit) : "none",
                        ", ", memory_.available(), " free on the device");
  throw Error(ErrorKind::kOutOfMemory, last_failure);
}

std::vector<Arena::View> Arena::blocks() const {
  const std::lock_guard lock(mutex_);
  std::vector<View> out;
  for (const Block* b : all_blocks()) out.push_back({b->address, b->bytes, b->used, b->graphs});
  return out;
}

}  // namespace cuvil::ep
