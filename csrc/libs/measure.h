// Times candidate launches against each other on the device.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

namespace cuvil::libs {

// Kernels of a few microseconds are shorter than their launch from the host, so a host loop would time the host: the
// candidate is captured several times into a CUDA Graph, which is how it will run later, and the graph is timed.
class Measurer {
 public:
  Measurer() = default;
  ~Measurer();
  Measurer(const Measurer&) = delete;
  Measurer& operator=(const Measurer&) = delete;

  using Launch = std::function<void(cudaStream_t)>;

  // Microseconds of one `launch`, or infinity when it throws, fails, or cannot be captured. Waits for `origin`, where
  // the inputs were produced, first. Never to be called while `origin` is being captured.
  double microseconds(cudaStream_t origin, const Launch& launch);

 private:
  double measure(const Launch& launch);

  cudaStream_t stream_ = nullptr;
  cudaEvent_t start_ = nullptr, stop_ = nullptr;
};

}  // namespace cuvil::libs
