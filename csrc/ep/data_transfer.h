// Copies between host and GPU for ORT: feeds, fetches, initializers, OrtValues of the application.
#pragma once

#include <functional>

#include "ep/device.h"
#include "ep/ort.h"

namespace cuvil::ep {

// A copy on a stream. `wait`: return only when the host may read the result or reuse the source; else that is up to
// whoever waits for the stream (pageable host memory is safe at once either way).
void copy_on(DeviceContext& device, cudaStream_t stream, void* dst, bool dst_on_gpu, const void* src, bool src_on_gpu,
             size_t bytes, bool wait);

// A copy ordered after everything that concerns its memory: on the stream of the session that owns it, else after the
// work of all streams. Returns when host memory may be read or reused. Throws while that stream is being captured: the
// graph would keep the host address.
void copy(DeviceContext& device, void* dst, bool dst_on_gpu, const void* src, bool src_on_gpu, size_t bytes);

class DataTransfer : public OrtDataTransferImpl {
 public:
  explicit DataTransfer(std::function<DeviceContext&(int device)> context_of);

 private:
  void copy_tensors(const OrtValue** src, OrtValue** dst, OrtSyncStream** streams, size_t count);
  std::function<DeviceContext&(int)> context_of_;
};

}  // namespace cuvil::ep
