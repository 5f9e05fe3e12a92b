// Sums: of the elements, of their magnitudes, of their squares.
#include "kernels/reduce_impl.cuh"

namespace cuvil::reduce_impl {
namespace {

struct Plain {
  template <typename A>
  using Acc = A;
  using combine = device::Sum;
  template <typename A>
  static __device__ __forceinline__ A identity() {
    return A{0};
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

struct Magnitude : Plain {
  template <typename A>
  static __device__ __forceinline__ A take(A x) {
    return x < A{0} ? -x : x;
  }
};

struct Square : Plain {
  template <typename A>
  static __device__ __forceinline__ A take(A x) {
    return x * x;
  }
};

}  // namespace

cudaError_t launch_sum(const ReduceParams& p, Finish how, cudaStream_t stream) {
  return launch_numbers<Plain>(p, how, stream);
}

// The second pass adds what the first one took the magnitudes or squares of.
cudaError_t launch_abs_sum(const ReduceParams& p, Finish how, cudaStream_t stream) {
  return p.x_partial ? launch_sum(p, how, stream) : launch_numbers<Magnitude>(p, how, stream);
}

cudaError_t launch_square_sum(const ReduceParams& p, Finish how, cudaStream_t stream) {
  return p.x_partial ? launch_sum(p, how, stream) : launch_numbers<Square>(p, how, stream);
}

}  // namespace cuvil::reduce_impl
