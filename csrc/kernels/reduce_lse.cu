// log(sum(exp(x))) in one reading: the maximum so far, and the sum of exponentials relative to it.
#include <limits>

#include "kernels/reduce_impl.cuh"

namespace cuvil::reduce_impl {

template <typename A>
struct MaxAndSum {
  A max;
  A sum;  // of exp(x - origin(max))
};

// Found by argument-dependent lookup from device::warp_reduce.
template <typename A>
__device__ __forceinline__ MaxAndSum<A> shuffle_xor(MaxAndSum<A> v, int mask) {
  return {device::shuffle_xor(v.max, mask), device::shuffle_xor(v.sum, mask)};
}

namespace {

template <typename A>
constexpr A kInfinity = std::numeric_limits<A>::infinity();

// Exponents are relative to the maximum while that is finite; an infinite one would make inf - inf.
template <typename A>
__device__ __forceinline__ A origin(A max) {
  return isfinite(max) ? max : A{0};
}

// `acc.sum` relative to `origin`. Of a maximum of -inf it is 0, of +inf or NaN it is inf or NaN: not to be scaled.
template <typename A>
__device__ __forceinline__ A rebase(MaxAndSum<A> acc, A origin) {
  return isfinite(acc.max) ? acc.sum * exp(acc.max - origin) : acc.sum;
}

struct CombineExp {
  template <typename A>
  __device__ __forceinline__ MaxAndSum<A> operator()(MaxAndSum<A> a, MaxAndSum<A> b) const {
    const A max = device::Max{}(a.max, b.max), o = origin(max);
    return {max, rebase(a, o) + rebase(b, o)};
  }
};

struct LogSumExp {
  template <typename A>
  using Acc = MaxAndSum<A>;
  using combine = CombineExp;
  template <typename A>
  static __device__ __forceinline__ MaxAndSum<A> identity() {
    return {-kInfinity<A>, A{0}};
  }
  template <typename A>
  static __device__ __forceinline__ MaxAndSum<A> take(A x) {
    return {x, isfinite(x) ? A{1} : exp(x)};
  }
  template <typename A>
  static __device__ __forceinline__ A value(MaxAndSum<A> acc) {
    return origin(acc.max) + log(acc.sum);
  }
};

}  // namespace

// A partial result is itself a log-sum-exp, so that the second pass is the same reduction.
cudaError_t launch_log_sum_exp(const ReduceParams& p, cudaStream_t stream) {
  return launch_floats<LogSumExp>(p, Finish::kNone, stream);
}

}  // namespace cuvil::reduce_impl
