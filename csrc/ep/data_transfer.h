// Copies between host and GPU for ORT: feeds, fetches, initializers, OrtValues of the application.
#pragma once

#include <functional>

#include "ep/device.h"
#include "ep/ort.h"

namespace cuvil::ep {

// One contiguous copy. The stream is the one ORT names, else the one that orders the session's memory involved, else
// none: then the work of all streams is waited for first. Returns when a host buffer may be reused or read, except for
// copies from or to page-locked memory on a stream that ORT named. Throws while that stream is being captured: the
// graph would keep the host address.
void copy(DeviceContext& device, void* dst, bool dst_on_gpu, const void* src, bool src_on_gpu, size_t bytes,
          cudaStream_t named_stream);

class DataTransfer : public OrtDataTransferImpl {
 public:
  explicit DataTransfer(std::function<DeviceContext&(int device)> context_of);

 private:
  void copy_tensors(const OrtValue** src, OrtValue** dst, OrtSyncStream** streams, size_t count);
  std::function<DeviceContext&(int)> context_of_;
};

}  // namespace cuvil::ep
