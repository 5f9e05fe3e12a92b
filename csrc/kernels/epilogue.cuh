// What a convolution or product leaves to do when the library cannot fuse it: y = act(y + bias + z), in place.
#pragma once

#include <cuda_runtime_api.h>

#include "core/dtype.h"
#include "device/activation.h"

namespace cuvil {

struct EpilogueParams {
  void* y = nullptr;                // [count], read and written
  const void* bias = nullptr;       // [channels] or null; element i of y takes bias[(i / inner) % channels]
  const void* z = nullptr;          // [count] or null
  DType dtype = DType::kUndefined;  // f32, f16, bf16 or f64
  int64_t count = 0;
  int64_t channels = 1;
  int64_t inner = 1;
  ActivationParams activation;
};

cudaError_t launch_epilogue(const EpilogueParams& p, cudaStream_t stream);

}  // namespace cuvil
