// Streams and notifications for ORT's stream-aware mode (option stream_aware=1) and for applications that ask the
// device for a stream.
#pragma once

#include <memory>

#include "ep/device.h"
#include "ep/ort.h"

namespace cuvil::ep {

class SyncStream : public OrtSyncStreamImpl {
 public:
  // `memory`: the session whose blocks the stream orders; may be null.
  SyncStream(DeviceContext& device, std::shared_ptr<SessionMemory> memory);

 private:
  DeviceContext& device_;
  std::shared_ptr<SessionMemory> memory_;
  std::shared_ptr<ComputeStream> stream_;
};

class SyncNotification : public OrtSyncNotificationImpl {
 public:
  SyncNotification(DeviceContext& device, std::shared_ptr<ComputeStream> stream);
  ~SyncNotification();
  SyncNotification(const SyncNotification&) = delete;
  SyncNotification& operator=(const SyncNotification&) = delete;

 private:
  DeviceContext& device_;
  std::shared_ptr<ComputeStream> stream_;
  cudaEvent_t event_ = nullptr;
};

}  // namespace cuvil::ep
