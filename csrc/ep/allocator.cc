#include "ep/allocator.h"

#include <string>

#include "ep/status.h"

namespace cuvil::ep {

Ort::MemoryInfo device_memory_info(int device) {
  // Alignment 0 is what OrtValues made for "cuda" carry; any other value would make them foreign memory.
  return Ort::MemoryInfo("Cuvil", OrtMemoryInfoDeviceType_GPU, kVendorId, static_cast<uint32_t>(device),
                         OrtDeviceMemoryType_DEFAULT, 0, OrtDeviceAllocator);
}

Ort::MemoryInfo pinned_memory_info(int device) {
  return Ort::MemoryInfo("CuvilPinned", OrtMemoryInfoDeviceType_GPU, kVendorId, static_cast<uint32_t>(device),
                         OrtDeviceMemoryType_HOST_ACCESSIBLE, 0, OrtDeviceAllocator);
}

ArenaAllocator::ArenaAllocator(std::shared_ptr<SessionMemory> session, Ort::MemoryInfo info, Log log)
    : OrtAllocator{}, session_(std::move(session)), arena_(*session_->arena), info_(std::move(info)), log_(log) {
  set_callbacks(true);
}

ArenaAllocator::ArenaAllocator(Arena& arena, Ort::MemoryInfo info, Log log)
    : OrtAllocator{}, arena_(arena), info_(std::move(info)), log_(log) {
  set_callbacks(false);
}

StreamTag ArenaAllocator::session_stream() const { return session_ ? session_->tag() : kNoStream; }

void* ArenaAllocator::allocate(size_t bytes, StreamTag stream) noexcept {
  try {
    return arena_.allocate(bytes, stream);
  } catch (const std::exception& e) {
    log_.warning(e.what());  // the interface has no status; a kernel that needs the memory reports it once more
  } catch (...) {
  }
  return nullptr;
}

void ArenaAllocator::set_callbacks(bool on_stream) {
  version = ORT_API_VERSION;
  Alloc = [](OrtAllocator* self, size_t bytes) -> void* {
    auto* a = static_cast<ArenaAllocator*>(self);
    return a->allocate(bytes, a->session_stream());
  };
  Reserve = Alloc;
  Free = [](OrtAllocator* self, void* p) {
    try {
      static_cast<ArenaAllocator*>(self)->arena_.free(p);
    } catch (...) {  // a pointer that is not ours: there is nobody to tell
    }
  };
  Info = [](const OrtAllocator* self) -> const OrtMemoryInfo* {
    return static_cast<const ArenaAllocator*>(self)->info_;
  };
  if (on_stream) {
    AllocOnStream = [](OrtAllocator* self, size_t bytes, OrtSyncStream* stream) -> void* {
      auto* a = static_cast<ArenaAllocator*>(self);
      return a->allocate(bytes, stream ? api().SyncStream_GetHandle(stream) : a->session_stream());
    };
  }
  Shrink = [](OrtAllocator* self) noexcept -> OrtStatus* {
    return guarded([&] { static_cast<ArenaAllocator*>(self)->arena_.shrink(); });
  };
  GetStats = [](const OrtAllocator* self, OrtKeyValuePairs** out) noexcept -> OrtStatus* {
    return guarded([&] {
      const ArenaStats s = static_cast<const ArenaAllocator*>(self)->arena_.stats();
      Ort::KeyValuePairs pairs;
      const auto add = [&](const char* key, const std::string& value) { pairs.Add(key, value.c_str()); };
      add("Limit", s.limit ? std::to_string(s.limit) : "-1");
      add("InUse", std::to_string(s.in_use));
      add("TotalAllocated", std::to_string(s.reserved));
      add("MaxInUse", std::to_string(s.max_in_use));
      add("NumAllocs", std::to_string(s.num_allocs));
      add("NumReserves", "0");
      add("NumArenaExtensions", std::to_string(s.num_extensions));
      add("NumArenaShrinkages", std::to_string(s.num_shrinkages));
      add("MaxAllocSize", std::to_string(s.max_alloc));
      add("HeldByCapturedGraphs", std::to_string(s.captured));
      *out = pairs.release();
    });
  };
}

}  // namespace cuvil::ep
