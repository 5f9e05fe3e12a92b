#include "kernels/int4_gemm.cuh"

namespace cuvil {

cudaError_t launch_int4_gemm(const Int4GemmParams& p, cudaStream_t stream) {
  if (p.way.wgmma && p.weight.dtype == DType::kF16) return launch_int4_wgmma_f16(p, stream);
  if (p.way.wgmma && p.weight.dtype == DType::kBF16) return launch_int4_wgmma_bf16(p, stream);
  if (p.way.warps > 0 && p.weight.dtype == DType::kF16) return launch_int4_direct_f16(p, stream);
  if (p.way.warps > 0 && p.weight.dtype == DType::kBF16) return launch_int4_direct_bf16(p, stream);
  const bool four = p.weight.bits == 4;
  if (p.weight.dtype == DType::kF16)
    return four ? launch_int4_gemm_f16_4(p, stream) : launch_int4_gemm_f16_8(p, stream);
  if (p.weight.dtype == DType::kBF16)
    return four ? launch_int4_gemm_bf16_4(p, stream) : launch_int4_gemm_bf16_8(p, stream);
  return cudaErrorInvalidValue;
}

}  // namespace cuvil
