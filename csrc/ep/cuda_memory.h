// Where the arenas get their memory: the device's, and page-locked memory of the host.
#pragma once

#include <string>

#include "ep/arena.h"

namespace cuvil::ep {

class DeviceContext;

class CudaMemory : public DeviceMemory {
 public:
  explicit CudaMemory(DeviceContext& context);
  void* allocate(size_t bytes) override;
  void release(void* p) override;
  void synchronize() override;
  size_t available() override;
  const char* kind() override { return kind_.c_str(); }

 private:
  DeviceContext& context_;
  const std::string kind_;
};

class PinnedMemory : public DeviceMemory {
 public:
  explicit PinnedMemory(DeviceContext& context) : context_(context) {}
  void* allocate(size_t bytes) override;
  void release(void* p) override;
  void synchronize() override;
  size_t available() override { return 0; }
  const char* kind() override { return "the host (page-locked memory)"; }

 private:
  DeviceContext& context_;
};

}  // namespace cuvil::ep
