// Finds the GPUs and makes execution providers for them. One factory a library.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "ep/device.h"
#include "ep/log.h"
#include "ep/ort.h"

namespace cuvil::ep {

class Factory : public OrtEpFactory {
 public:
  explicit Factory(const OrtLogger* logger);
  ~Factory();
  Factory(const Factory&) = delete;
  Factory& operator=(const Factory&) = delete;

 private:
  void set_callbacks();
  size_t supported_devices(const OrtHardwareDevice* const* devices, size_t count, OrtEpDevice** out, size_t room);
  OrtEpDevice* describe(const FoundDevice& device, const OrtHardwareDevice* hardware);
  const OrtHardwareDevice* make_hardware(const FoundDevice& device);
  OrtEp* create_ep(const OrtKeyValuePairs* const* metadata, size_t count, const OrtSessionOptions* session_options,
                   const OrtLogger* logger);
  DeviceContext& context(int id);

  const Log log_;
  std::mutex mutex_;
  std::vector<FoundDevice> found_;
  std::map<int, std::unique_ptr<DeviceContext>> contexts_;
  std::vector<OrtHardwareDevice*> made_hardware_;
  std::vector<Ort::MemoryInfo> memory_infos_;  // ORT keeps pointers to them for as long as the library is loaded
  Ort::KernelRegistry registry_{nullptr};
};

}  // namespace cuvil::ep
