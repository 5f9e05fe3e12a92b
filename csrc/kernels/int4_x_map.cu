#include <cuda_runtime.h>

#include "kernels/int4_x_map.cuh"

namespace cuvil {
namespace int4_gemm {

cudaError_t int4_x_map(const Int4GemmParams& p, int columns, CUtensorMap* map) {
  using Encode = decltype(&cuTensorMapEncodeTiled);
  static const Encode encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t code =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
    return code == cudaSuccess && found == cudaDriverEntryPointSuccess ? reinterpret_cast<Encode>(function) : nullptr;
  }();
  if (!encode) return cudaErrorNotSupported;
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(p.weight.depth), static_cast<cuuint64_t>(p.m)};
  const cuuint64_t strides[1] = {sizes[0] * 2};
  const cuuint32_t box[2] = {kBoxDepth, static_cast<cuuint32_t>(columns)}, every[2] = {1, 1};
  const CUtensorMapDataType type =
      p.weight.dtype == DType::kF16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const CUresult code =
      encode(map, type, 2, const_cast<void*>(p.x), sizes, strides, box, every, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return code == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace int4_gemm
}  // namespace cuvil
