// Arenas behind ORT's allocator interface.
#pragma once

#include <memory>

#include "ep/arena.h"
#include "ep/device.h"
#include "ep/log.h"
#include "ep/ort.h"

namespace cuvil::ep {

Ort::MemoryInfo device_memory_info(int device);
Ort::MemoryInfo pinned_memory_info(int device);

class ArenaAllocator : public OrtAllocator {
 public:
  // Memory of a session: blocks are ordered by its stream, or by the stream that ORT names.
  ArenaAllocator(std::shared_ptr<SessionMemory> session, Ort::MemoryInfo info, Log log);
  // Memory of no session.
  ArenaAllocator(Arena& arena, Ort::MemoryInfo info, Log log);

 private:
  void set_callbacks(bool on_stream);
  void* allocate(size_t bytes, StreamTag stream) noexcept;
  StreamTag session_stream() const;

  std::shared_ptr<SessionMemory> session_;
  Arena& arena_;
  Ort::MemoryInfo info_;
  const Log log_;  // of the library: allocators outlive sessions
};

}  // namespace cuvil::ep
