// activation(gate) * up, both halves of each row.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"
#include "device/activation.h"

namespace cuvil {

// Computed in fp32 for 16-bit types, and rounded once.
struct GatedUnitParams {
  const void* x = nullptr;          // [rows, 2 * n]
  void* y = nullptr;                // [rows, n]
  DType dtype = DType::kUndefined;  // any floating type
  int64_t rows = 0;
  int64_t n = 0;
  bool gate_first = true;
  ActivationParams activation = {};
};

// cudaErrorInvalidValue for another dtype.
cudaError_t launch_gated_unit(const GatedUnitParams& p, cudaStream_t stream);

}  // namespace cuvil
