// Warp and block reductions in a fixed order, so that two runs give the same bits.
//
// Every function has all its lanes return the result. `Op` is a stateless functor `T operator()(T, T)`.
#pragma once

#include <cuda_runtime.h>

#include "device/vec.cuh"

namespace cuvil::device {

constexpr unsigned kFullMask = 0xffffffffu;

struct Sum {
  template <typename T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a + b;
  }
};

struct Prod {
  template <typename T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a * b;
  }
};

// Max and Min keep a NaN, whichever side it is on.
struct Max {
  template <typename T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a > b || a != a ? a : b;
  }
};

struct Min {
  template <typename T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a < b || a != a ? a : b;
  }
};

// The value of lane (this ^ mask). A struct of scalars has an overload of its own, beside the struct.
template <typename T>
__device__ __forceinline__ T shuffle_xor(T v, int mask) {
  return __shfl_xor_sync(kFullMask, v, mask);
}

// Over groups of `Width` neighbouring lanes; every lane of the warp takes part.
template <int Width = 32, typename T, typename Op>
__device__ __forceinline__ T warp_reduce(T v, Op op) {
#pragma unroll
  for (int mask = Width / 2; mask > 0; mask /= 2) v = op(v, shuffle_xor(v, mask));
  return v;
}

// Over a one-dimensional block whose size is a multiple of 32. `shared` holds 32 T's and may be used again after the
// next __syncthreads; a second call in a row needs none in between.
template <typename T, typename Op>
__device__ __forceinline__ T block_reduce(T v, Op op, T identity, T* shared) {
  v = warp_reduce(v, op);
  const int warps = blockDim.x / 32;
  if (warps == 1) return v;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  __syncthreads();  // an earlier call's readers are done
  if (lane == 0) shared[warp] = v;
  __syncthreads();
  v = lane < warps ? shared[lane] : identity;
  return warp_reduce(v, op);
}

}  // namespace cuvil::device
