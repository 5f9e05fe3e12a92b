#include "kernels/small_product_impl.cuh"

namespace cuvil::small_product {

cudaError_t launch_bf16(const SmallProductParams& p, ProductCut cut, cudaStream_t stream) {
  return launch<__nv_bfloat16>(p, cut, stream);
}

}  // namespace cuvil::small_product
