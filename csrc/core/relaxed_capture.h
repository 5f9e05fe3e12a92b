// Calls that CUDA refuses while a stream is being captured, and that are safe all the same.
#pragma once

#include <cuda_runtime_api.h>

namespace cuvil {

// Allocating, freeing and loading code are refused while a capture is on, and poison it, unless the thread declares
// that they have nothing to do with what is being captured: it does so in the scope of this object.
class RelaxedCapture {
 public:
  RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace cuvil
