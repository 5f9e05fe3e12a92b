// Product of the elements.
#include "kernels/reduce_impl.cuh"

namespace cuvil::reduce_impl {
namespace {

struct Product {
  template <typename A>
  using Acc = A;
  using combine = device::Prod;
  template <typename A>
  static __device__ __forceinline__ A identity() {
    return A{1};
  }
  template <typename A>
  static __device__ __forceinline__ A take(A x) {
    return x;
  }
  template <typename A>
  static __device__ __forceinline__ A value(A acc) {
    return acc;
  }
};

}  // namespace

cudaError_t launch_prod(const ReduceParams& p, cudaStream_t stream) {
  return launch_numbers<Product>(p, Finish::kNone, stream);
}

}  // namespace cuvil::reduce_impl
