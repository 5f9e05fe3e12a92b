// A file of its own for each type: these kernels take long to compile.
#include "kernels/int4_direct_impl.cuh"

namespace cuvil {

cudaError_t launch_int4_direct_bf16(const Int4GemmParams& p, cudaStream_t stream) {
  return int4_gemm::launch_direct_any<__nv_bfloat16>(p, stream);
}

}  // namespace cuvil
