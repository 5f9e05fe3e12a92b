// Cosine windows for signal processing.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"

namespace cuvil {

// y[i] = a[0] - a[1] cos(2 pi i / length) + a[2] cos(4 pi i / length) for i in [0, n). The angle is computed in double.
struct SignalWindowParams {
  void* y = nullptr;
  DType dtype = DType::kUndefined;  // any floating type
  int64_t n = 0;
  double length = 0;  // 0 gives NaN
  double a[3] = {};
};

// cudaErrorInvalidValue for another type.
cudaError_t launch_signal_window(const SignalWindowParams& p, cudaStream_t stream);

}  // namespace cuvil
