// The running value of one pooling window. `add` and `result` take the order p of a norm, which the others ignore.
#pragma once

#include <cuda_runtime.h>

#include "device/reduce.cuh"
#include "device/vec.cuh"

namespace cuvil::device {

template <typename T>
struct Lowest;
template <>
struct Lowest<float> {
  static constexpr float value = -3.402823466e+38f;
};
template <>
struct Lowest<double> {
  static constexpr double value = -1.7976931348623157e+308;
};
template <>
struct Lowest<__half> {
  static constexpr float value = -65504.f;
};
template <>
struct Lowest<__nv_bfloat16> {
  static constexpr float value = -3.38953139e+38f;
};

// Sum and division (Max = false), or maximum.
template <typename T, bool Max>
struct PoolReduce {
  using C = Compute<T>;
  C value = identity();

  static __device__ __forceinline__ C identity() { return Max ? C(Lowest<T>::value) : C(0); }
  static __device__ __forceinline__ C combine(C a, C b) {
    if constexpr (Max)
      return device::Max{}(a, b);
    else
      return a + b;
  }
  // -infinity is below the identity, so that a window of nothing but it must not end at the identity: the first
  // element replaces it.
  __device__ __forceinline__ void add(T x, float = 0) {
    const C v = to_compute(x);
    value = Max && !any ? v : combine(value, v);
    any = true;
  }
  __device__ __forceinline__ T result(int divisor, float = 0) const {
    if constexpr (Max) return from_compute<T>(value);
    return from_compute<T>(divisor == 0 ? C(0) : value / C(divisor));
  }

 private:
  bool any = false;
};

// (sum of |x|^p)^(1/p).
template <typename T>
struct LpReduce {
  using C = Compute<T>;
  C sum = 0;

  __device__ __forceinline__ void add(T x, float p) {
    const C v = to_compute(x), size = v < C(0) ? -v : v;
    sum += p == 2.f ? v * v : p == 1.f ? size : pow(size, C(p));
  }
  __device__ __forceinline__ T result(int, float p) const {
    return from_compute<T>(p == 2.f ? sqrt(sum) : p == 1.f ? sum : pow(sum, C(1) / C(p)));
  }
};

}  // namespace cuvil::device
