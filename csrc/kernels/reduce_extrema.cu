// Maximum and minimum. The extremum of nothing is the type's lowest or highest value, infinite for floats.
#include <limits>

#include "kernels/reduce_impl.cuh"

namespace cuvil::reduce_impl {
namespace {

template <typename A, bool Highest>
constexpr A limit() {
  using Limits = std::numeric_limits<A>;
  if constexpr (Limits::has_infinity) return Highest ? Limits::infinity() : -Limits::infinity();
  return Highest ? Limits::max() : Limits::lowest();
}

// A variable, because device code may read constants but not call host functions.
template <typename A, bool Highest>
constexpr A kLimit = limit<A, Highest>();

template <bool Maximum>
struct Extremum {
  template <typename A>
  using Acc = A;
  using combine = std::conditional_t<Maximum, device::Max, device::Min>;
  template <typename A>
  static __device__ __forceinline__ A identity() {
    return kLimit<A, !Maximum>;
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

template <bool Maximum>
cudaError_t launch_extremum(const ReduceParams& p, cudaStream_t stream) {
  using F = Extremum<Maximum>;
  switch (p.dtype) {
    case DType::kI8:
      return launch_typed<F, int8_t>(p, Finish::kNone, stream);
    case DType::kU8:
      return launch_typed<F, uint8_t>(p, Finish::kNone, stream);
    case DType::kBool:
      return launch_typed<F, bool>(p, Finish::kNone, stream);
    default:
      return launch_numbers<F>(p, Finish::kNone, stream);
  }
}

}  // namespace

cudaError_t launch_max(const ReduceParams& p, cudaStream_t stream) { return launch_extremum<true>(p, stream); }
cudaError_t launch_min(const ReduceParams& p, cudaStream_t stream) { return launch_extremum<false>(p, stream); }

}  // namespace cuvil::reduce_impl
