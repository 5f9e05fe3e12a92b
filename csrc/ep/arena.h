// A caching allocator for memory whose use is ordered by streams. Pure bookkeeping: memory comes from a DeviceMemory,
// so the tests run it on host memory.
//
// Freeing a block on the host says nothing about the device: kernels enqueued before may still use it. So a free block
// sits in one of these pools, and only the right callers take from each:
//   ordered by a stream   allocated for that stream, hence reusable by later work on the same stream at once
//   settled               no pending work touches it: anybody may take it
//   unsettled             allocated without a stream: the device is synchronised before anybody takes it
//   captured              addresses that CUDA Graphs use: only another capture of this arena takes it, until its graphs
//                         are released. Replays share one stream, so intermediates of different graphs may overlap;
//                         results that outlive a replay may not (end_capture)
// What is allocated before a capture and freed after it (an output that ONNX Runtime keeps from the warm-ups on)
// belongs to no graph, whose replays go on writing there: its owner keeps it as long as the graph.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

namespace cuvil::ep {

class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  virtual void* allocate(size_t bytes) = 0;  // nullptr when there is not enough; aligned to kArenaAlignment or better
  virtual void release(void* p) = 0;
  virtual void synchronize() = 0;  // waits for all work that may touch memory of this kind
  virtual size_t available() = 0;  // free bytes of the device, for error messages; 0 when unknown
  virtual const char* kind() = 0;  // "GPU 0", for error messages
};

constexpr size_t kArenaAlignment = 256;

using StreamTag = const void*;  // a stream's handle; kNoStream: not ordered by any stream
constexpr StreamTag kNoStream = nullptr;

struct ArenaStats {
  size_t limit = 0;   // 0: none
  size_t in_use = 0;  // bytes of blocks handed out
  size_t max_in_use = 0;
  size_t reserved = 0;  // bytes taken from the device
  size_t captured = 0;  // bytes that captured graphs hold, in use or not
  size_t max_alloc = 0;
  uint64_t num_allocs = 0;
  uint64_t num_extensions = 0;
  uint64_t num_shrinkages = 0;
};

class Arena {
 public:
  // `settled_when_freed`: freeing a block allocated without a stream needs no wait (host memory, unless
  // note_async_use says otherwise).
  Arena(DeviceMemory& memory, size_t limit, bool settled_when_freed = false);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Aligned to kArenaAlignment; nullptr for 0 bytes. Throws Error(kOutOfMemory) with the bytes wanted, in use, limit.
  void* allocate(size_t bytes, StreamTag stream);
  void free(void* p);  // ignores nullptr; throws Error(kInvalidArgument) for a pointer that is not in use
  bool owns(const void* p) const;
  // The device may still read this block after the host freed it: it then waits like an unsettled one.
  void note_async_use(const void* p);

  // Between begin and end, every block allocated or freed belongs to the graph. One capture at a time.
  void begin_capture(int graph);
  // False, and nothing is kept, when a block that is still in use (a result) is one that another graph's replays write
  // to. Later captures then take no other graph's blocks: the caller captures once more.
  bool end_capture(bool keep);
  void release_graph(int graph);

  // Work of stream `from` continues on `to` (already ordered after it); kNoStream as `to`: the stream is gone and idle.
  void retag(StreamTag from, StreamTag to);
  // Gives segments without any used or captured block back to the device.
  void shrink();
  ArenaStats stats() const;
  // Message of this thread's last failed allocation, "" when none failed since the last call. ORT's allocator interface
  // cannot carry it to whoever needed the memory.
  static std::string take_last_failure();
  // Every block in address order, for tests: {address, bytes, in use}.
  struct View {
    const void* address;
    size_t bytes;
    bool used;
    std::vector<int> graphs;
  };
  std::vector<View> blocks() const;

 private:
  struct Segment;
  struct Block {
    char* address = nullptr;
    size_t bytes = 0;
    Segment* segment = nullptr;
    bool used = false;
    bool settled = false;    // free, and no pending work touches it
    bool async_use = false;  // see note_async_use
    StreamTag stream = kNoStream;
    std::vector<int> graphs;  // sorted: the captured graphs that hold this address
  };
  struct Segment {
    std::map<char*, std::unique_ptr<Block>> blocks;
    size_t bytes = 0;
    bool small = false;
  };
  enum class Pool { kOrdered, kSettled, kUnsettled, kCaptured };
  using PoolKey = std::tuple<Pool, StreamTag, bool /*small*/>;
  struct BySize {
    bool operator()(const Block* a, const Block* b) const {
      return a->bytes != b->bytes ? a->bytes < b->bytes : a->address < b->address;
    }
  };
  using FreeList = std::set<Block*, BySize>;

  PoolKey pool_of(const Block& b) const;
  void insert_free(Block* b);  // joins free neighbours of the same pool first
  void remove_free(Block* b);
  Block* find(Pool pool, StreamTag stream, bool small, size_t bytes);
  Block* find_captured(bool small, size_t bytes);
  Block* find_any(StreamTag stream, bool small, size_t bytes);
  Block* grow(size_t bytes, bool small);
  Block* add_segment(size_t bytes, bool small);
  void take(Block* b, size_t bytes, StreamTag stream);
  void settle_all();  // synchronises, then moves every free block that no graph holds to the settled pool
  void release_idle_segments();
  void add_graph(Block& b, int graph);
  void drop_graph(int graph);
  [[noreturn]] void out_of_memory(size_t bytes);
  Block* block_at(const void* p) const;
  template <typename Change>
  void rebuild_free(const std::vector<Block*>& blocks, Change&& change);
  std::vector<Block*> all_blocks() const;

  DeviceMemory& memory_;
  const bool settled_when_freed_;
  mutable std::mutex mutex_;
  std::map<char*, std::unique_ptr<Segment>> segments_;
  std::map<PoolKey, FreeList> free_;
  std::unordered_map<const void*, Block*> used_;
  int capturing_ = kNotCapturing;
  bool graphs_share_ = true;
  ArenaStats stats_;

  static constexpr int kNotCapturing = INT32_MIN;
};

}  // namespace cuvil::ep
