// A file of its own for each type: these kernels take long to compile.
#include "kernels/attention_mma.cuh"

namespace cuvil {

cudaError_t launch_attention_bf16(const AttentionParams& p, cudaStream_t stream) {
  return attention_mma::launch<__nv_bfloat16>(p, stream);
}

}  // namespace cuvil
