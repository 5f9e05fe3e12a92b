#include "ep/sync_stream.h"

#include "ep/status.h"

namespace cuvil::ep {

SyncStream::SyncStream(DeviceContext& device, std::shared_ptr<SessionMemory> memory)
    : OrtSyncStreamImpl{}, device_(device), memory_(std::move(memory)), stream_(device.new_stream()) {
  ort_version_supported = ORT_API_VERSION;
  Release = [](OrtSyncStreamImpl* self) noexcept {
    std::unique_ptr<SyncStream> s(static_cast<SyncStream*>(self));
    const DeviceGuard guard(s->device_.info().id, std::nothrow);
    // The handle's value may come back for another stream, so no block may stay ordered by it.
    cudaStreamSynchronize(s->stream_->handle);
    if (s->memory_) s->memory_->arena->retag(s->stream_->handle, kNoStream);
  };
  GetHandle = [](OrtSyncStreamImpl* self) noexcept -> void* { return static_cast<SyncStream*>(self)->stream_->handle; };
  CreateNotification = [](OrtSyncStreamImpl* self, OrtSyncNotificationImpl** out) noexcept -> OrtStatus* {
    return guarded([&] {
      auto* s = static_cast<SyncStream*>(self);
      *out = new SyncNotification(s->device_, s->stream_);
    });
  };
  Flush = [](OrtSyncStreamImpl* self) noexcept -> OrtStatus* {
    return guarded([&] {
      auto* s = static_cast<SyncStream*>(self);
      const DeviceGuard guard(s->device_.info().id);
      CUVIL_CUDA(cudaStreamSynchronize(s->stream_->handle));
    });
  };
  OnSessionRunEnd = [](OrtSyncStreamImpl*) noexcept -> OrtStatus* { return nullptr; };
}

SyncNotification::SyncNotification(DeviceContext& device, std::shared_ptr<ComputeStream> stream)
    : OrtSyncNotificationImpl{}, device_(device), stream_(std::move(stream)) {
  const DeviceGuard guard(device_.info().id);
  CUVIL_CUDA(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
  ort_version_supported = ORT_API_VERSION;
  Release = [](OrtSyncNotificationImpl* self) noexcept { delete static_cast<SyncNotification*>(self); };
  Activate = [](OrtSyncNotificationImpl* self) noexcept -> OrtStatus* {
    return guarded([&] {
      auto* n = static_cast<SyncNotification*>(self);
      const DeviceGuard current(n->device_.info().id);
      CUVIL_CUDA(cudaEventRecord(n->event_, n->stream_->handle));
    });
  };
  WaitOnDevice = [](OrtSyncNotificationImpl* self, OrtSyncStream* consumer) noexcept -> OrtStatus* {
    return guarded([&] {
      auto* n = static_cast<SyncNotification*>(self);
      const DeviceGuard current(n->device_.info().id);
      const auto waiting = static_cast<cudaStream_t>(api().SyncStream_GetHandle(consumer));
      CUVIL_CUDA(cudaStreamWaitEvent(waiting, n->event_));
    });
  };
  WaitOnHost = [](OrtSyncNotificationImpl* self) noexcept -> OrtStatus* {
    return guarded([&] {
      auto* n = static_cast<SyncNotification*>(self);
      const DeviceGuard current(n->device_.info().id);
      CUVIL_CUDA(cudaEventSynchronize(n->event_));
    });
  };
}

SyncNotification::~SyncNotification() {
  const DeviceGuard guard(device_.info().id, std::nothrow);
  cudaEventDestroy(event_);
}

}  // namespace cuvil::ep
