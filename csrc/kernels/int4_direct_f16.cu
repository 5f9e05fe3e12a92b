// A file of its own for each type: these kernels take long to compile.
#include "kernels/int4_direct_impl.cuh"

namespace cuvil {

cudaError_t launch_int4_direct_f16(const Int4GemmParams& p, cudaStream_t stream) {
  return int4_gemm::launch_direct_any<__half>(p, stream);
}

}  // namespace cuvil
