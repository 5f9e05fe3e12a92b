#include "kernels/small_product_impl.cuh"

namespace cuvil {
namespace small_product {

cudaError_t launch_f16(const SmallProductParams& p, ProductCut cut, cudaStream_t stream) {
  return launch<__half>(p, cut, stream);
}

}  // namespace small_product

bool small_product_serves(const SmallProductParams& p) {
  const auto aligned = [](const void* q) { return reinterpret_cast<uintptr_t>(q) % 16 == 0; };
  return (p.dtype == DType::kF16 || p.dtype == DType::kBF16) && p.m > 0 && p.n > 0 && p.k > 0 && p.n % 8 == 0 &&
         p.k % 8 == 0 && aligned(p.a) && aligned(p.b) && aligned(p.c) && aligned(p.d);
}

cudaError_t launch_small_product(const SmallProductParams& p, ProductCut cut, cudaStream_t stream) {
  if (!small_product_serves(p)) return cudaErrorInvalidValue;
  if (cut.split != 1 && cut.split != 2 && cut.split != 4 && cut.split != 8) return cudaErrorInvalidValue;
  return p.dtype == DType::kF16 ? small_product::launch_f16(p, cut, stream)
                                : small_product::launch_bf16(p, cut, stream);
}

}  // namespace cuvil
