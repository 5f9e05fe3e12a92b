// A file of its own for each type and number of bits: these kernels take long to compile.
#include "kernels/int4_gemm_impl.cuh"

namespace cuvil {

cudaError_t launch_int4_gemm_bf16_4(const Int4GemmParams& p, cudaStream_t stream) {
  return int4_gemm::launch_any<__nv_bfloat16, 4>(p, stream);
}

}  // namespace cuvil
