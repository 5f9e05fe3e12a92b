#include "ep/factory.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "ep/allocator.h"
#include "ep/data_transfer.h"
#include "ep/ep.h"
#include "ep/failed_ep.h"
#include "ep/options.h"
#include "ep/registry.h"
#include "ep/status.h"
#include "ep/sync_stream.h"
#include "ep/version.h"

namespace cuvil::ep {
namespace {

constexpr const char* kOrdinalKey = "cuda_device_id";
constexpr const char* kBusKey = "pci_bus_id";

// "0000:17:00.0" from any of the usual spellings: upper case, eight digits of domain, no domain.
std::string normal_bus_id(const char* text) {
  std::string id = text ? text : "";
  std::transform(id.begin(), id.end(), id.begin(), [](unsigned char c) { return std::tolower(c); });
  const size_t colon = id.find(':');
  if (colon == std::string::npos) return "";
  if (id.find(':', colon + 1) == std::string::npos) return "0000:" + id;
  return colon > 4 ? id.substr(colon - 4) : id;
}

const OrtHardwareDevice* matching(const FoundDevice& device, const std::vector<const OrtHardwareDevice*>& hardware) {
  for (const OrtHardwareDevice* h : hardware) {
    const std::string bus = normal_bus_id(api().GetKeyValue(api().HardwareDevice_Metadata(h), kBusKey));
    if (!bus.empty() && bus == normal_bus_id(device.pci_bus_id.c_str())) return h;
  }
  return nullptr;
}

}  // namespace

Factory::Factory(const OrtLogger* logger) : OrtEpFactory{}, log_(logger) { set_callbacks(); }

Factory::~Factory() {
  for (OrtHardwareDevice* h : made_hardware_) ep_api().ReleaseHardwareDevice(h);
}

size_t Factory::supported_devices(const OrtHardwareDevice* const* devices, size_t count, OrtEpDevice** out,
                                  size_t room) {
  std::vector<const OrtHardwareDevice*> nvidia;
  for (size_t i = 0; i < count; ++i)
    if (api().HardwareDevice_Type(devices[i]) == OrtHardwareDeviceType_GPU &&
        api().HardwareDevice_VendorId(devices[i]) == kVendorId)
      nvidia.push_back(devices[i]);
  // ORT's discovery finds nothing in many containers and virtual machines, so CUDA is asked even then; without a
  // driver that costs a failed dlopen.
  std::string why;
  const std::lock_guard lock(mutex_);
  found_ = find_cuda_devices(&why);
  if (found_.empty()) {
    const std::string text = "no usable CUDA device (" + why + "); the provider is registered without devices";
    nvidia.empty() ? log_.info(text) : log_.warning(text);
  }
  size_t made = 0;
  for (const FoundDevice& device : found_) {
    if (made == room) break;
    const OrtHardwareDevice* hardware = matching(device, nvidia);
    if (!hardware && nvidia.size() == 1 && found_.size() == 1) hardware = nvidia[0];
    if (!hardware) hardware = make_hardware(device);
    out[made++] = describe(device, hardware);
  }
  return made;
}

const OrtHardwareDevice* Factory::make_hardware(const FoundDevice& device) {
  Ort::KeyValuePairs metadata;
  metadata.Add(kBusKey, device.pci_bus_id.c_str());
  OrtHardwareDevice* made = nullptr;
  ort_check(ep_api().CreateHardwareDevice(OrtHardwareDeviceType_GPU, kVendorId, static_cast<uint32_t>(device.info.id),
                                          "NVIDIA", metadata, &made));
  made_hardware_.push_back(made);
  return made;
}

OrtEpDevice* Factory::describe(const FoundDevice& device, const OrtHardwareDevice* hardware) {
  Ort::KeyValuePairs metadata, no_options;
  const auto add = [&](const char* key, const std::string& value) { metadata.Add(key, value.c_str()); };
  add(kOrdinalKey, std::to_string(device.info.id));
  add("name", device.info.name);
  add("compute_capability", concat(device.info.sm / 10, ".", device.info.sm % 10));
  add("total_memory", std::to_string(device.total_bytes));
  add(kBusKey, device.pci_bus_id);
  OrtEpDevice* ep_device = nullptr;
  ort_check(ep_api().CreateEpDevice(this, hardware, metadata, no_options, &ep_device));
  memory_infos_.push_back(device_memory_info(device.info.id));
  ort_check(ep_api().EpDevice_AddAllocatorInfo(ep_device, memory_infos_.back()));
  memory_infos_.push_back(pinned_memory_info(device.info.id));
  ort_check(ep_api().EpDevice_AddAllocatorInfo(ep_device, memory_infos_.back()));
  return ep_device;
}

DeviceContext& Factory::context(int id) {
  const std::lock_guard lock(mutex_);
  const auto known = contexts_.find(id);
  if (known != contexts_.end()) return *known->second;
  const auto device = std::find_if(found_.begin(), found_.end(), [&](const FoundDevice& d) { return d.info.id == id; });
  require(device != found_.end(), "there is no CUDA device ", id);
  return *contexts_.emplace(id, std::make_unique<DeviceContext>(device->info)).first->second;
}

OrtEp* Factory::create_ep(const OrtKeyValuePairs* const* metadata, size_t count,
                          const OrtSessionOptions* session_options, const OrtLogger* logger) {
  Options options = read_options(session_options);
  std::vector<int> offered;
  for (size_t i = 0; i < count; ++i)
    if (const char* ordinal = api().GetKeyValue(metadata[i], kOrdinalKey)) offered.push_back(std::atoi(ordinal));
  require(!offered.empty(), "no CUDA device was given to the session");
  const int id = options.device_id.value_or(offered[0]);
  require(std::find(offered.begin(), offered.end(), id) != offered.end(), "option device_id=", id, " is not among the ",
          offered.size(), " devices given to the session");
  DeviceContext& device = context(id);
  require_machine_code(device.info());
  {
    const std::lock_guard lock(mutex_);
    if (!registry_) registry_ = make_kernel_registry();
  }
  return new Ep(device, registry_, std::move(options), logger, log_);
}

void Factory::set_callbacks() {
  ort_version_supported = ORT_API_VERSION;
  GetName = [](const OrtEpFactory*) noexcept { return kEpName; };
  GetVendor = [](const OrtEpFactory*) noexcept { return "NVIDIA GPUs through cuvil_onnx"; };
  GetVendorId = [](const OrtEpFactory*) noexcept { return kVendorId; };
  GetVersion = [](const OrtEpFactory*) noexcept { return kVersion; };
  GetSupportedDevices = [](OrtEpFactory* self, const OrtHardwareDevice* const* devices, size_t count, OrtEpDevice** out,
                           size_t room, size_t* made) noexcept -> OrtStatus* {
    *made = 0;
    return guarded([&] { *made = static_cast<Factory*>(self)->supported_devices(devices, count, out, room); });
  };
  CreateEp = [](OrtEpFactory* self, const OrtHardwareDevice* const*, const OrtKeyValuePairs* const* metadata,
                size_t count, const OrtSessionOptions* options, const OrtLogger* logger,
                OrtEp** ep) noexcept -> OrtStatus* {
    *ep = nullptr;
    OrtStatus* failed =
        guarded([&] { *ep = static_cast<Factory*>(self)->create_ep(metadata, count, options, logger); });
    return failed ? guarded([&] { *ep = new FailedEp(failed); }) : nullptr;
  };
  ReleaseEp = [](OrtEpFactory*, OrtEp* ep) noexcept { delete static_cast<EpBase*>(ep); };
  CreateAllocator = [](OrtEpFactory* self, const OrtMemoryInfo* info, const OrtKeyValuePairs*,
                       OrtAllocator** out) noexcept -> OrtStatus* {
    *out = nullptr;
    return guarded([&] {
      require(info != nullptr, "an allocator was asked for without saying for which memory");
      const OrtMemoryDevice* where = ep_api().MemoryInfo_GetMemoryDevice(info);
      const int id = static_cast<int>(ep_api().MemoryDevice_GetDeviceId(where));
      DeviceContext& device = static_cast<Factory*>(self)->context(id);
      const Log log = static_cast<Factory*>(self)->log_;
      const bool pinned = ep_api().MemoryDevice_GetMemoryType(where) == OrtDeviceMemoryType_HOST_ACCESSIBLE;
      *out = pinned ? new ArenaAllocator(device.pinned_arena(), pinned_memory_info(id), log)
                    : new ArenaAllocator(device.shared_arena(), device_memory_info(id), log);
    });
  };
  ReleaseAllocator = [](OrtEpFactory*, OrtAllocator* allocator) noexcept {
    delete static_cast<ArenaAllocator*>(allocator);
  };
  CreateDataTransfer = [](OrtEpFactory* self, OrtDataTransferImpl** out) noexcept -> OrtStatus* {
    return guarded([&] {
      auto* factory = static_cast<Factory*>(self);
      *out = new DataTransfer([factory](int id) -> DeviceContext& { return factory->context(id); });
    });
  };
  IsStreamAware = [](const OrtEpFactory*) noexcept { return Ep::stream_aware_on_this_thread(); };
  CreateSyncStreamForDevice = [](OrtEpFactory* self, const OrtMemoryDevice* where, const OrtKeyValuePairs*,
                                 OrtSyncStreamImpl** out) noexcept -> OrtStatus* {
    return guarded([&] {
      const int id = static_cast<int>(ep_api().MemoryDevice_GetDeviceId(where));
      *out = new SyncStream(static_cast<Factory*>(self)->context(id), nullptr);
    });
  };
}

}  // namespace cuvil::ep
