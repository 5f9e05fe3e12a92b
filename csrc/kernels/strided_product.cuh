// Products of two strided views, summed over trailing dimensions: what an Einsum has beside matrix products.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"

namespace cuvil {

constexpr int kMaxProductRank = 16;

// y, contiguous over the first rank - reduced dimensions, is the sum of a * b over the last `reduced` ones. f16 and
// bf16 multiply and add in float.
struct StridedProductParams {
  const void* a = nullptr;
  const void* b = nullptr;
  void* y = nullptr;
  DType dtype = DType::kUndefined;  // f32, f16, bf16 or f64
  int rank = 0;                     // 0..kMaxProductRank
  int reduced = 0;
  int64_t extent[kMaxProductRank] = {};  // above zero
  int64_t step_a[kMaxProductRank] = {};  // in elements, 0 where a does not have the dimension
  int64_t step_b[kMaxProductRank] = {};
};

cudaError_t launch_strided_product(const StridedProductParams& params, cudaStream_t stream);

}  // namespace cuvil
