#include "device/index.cuh"
#include "device/reduce.cuh"
#include "device/vec.cuh"
#include "kernels/arg.cuh"

namespace cuvil {

// The best value so far and where it is; index -1 is nothing yet.
template <typename A>
struct Candidate {
  A value;
  int64_t index;
};

// Found by argument-dependent lookup from device::warp_reduce.
template <typename A>
__device__ __forceinline__ Candidate<A> shuffle_xor(Candidate<A> c, int mask) {
  return {device::shuffle_xor(c.value, mask), device::shuffle_xor(c.index, mask)};
}

namespace {

constexpr int kThreads = 256;

template <bool Maximum, bool Last>
struct Better {
  template <typename A>
  __device__ __forceinline__ Candidate<A> operator()(Candidate<A> a, Candidate<A> b) const {
    if (a.index < 0) return b;
    if (b.index < 0) return a;
    const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
    if (a_nan != b_nan) return a_nan ? a : b;
    if (!a_nan && a.value != b.value) return (a.value > b.value) == Maximum ? a : b;
    return (a.index < b.index) != Last ? a : b;
  }
};

// inner == 1: Lanes threads a row.
template <typename T, typename Op, int Lanes>
__global__ void __launch_bounds__(kThreads) arg_rows(const T* __restrict__ x, int64_t* y, int64_t rows, int64_t n) {
  using A = device::Compute<T>;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kThreads / Lanes) + threadIdx.x / Lanes;
  Candidate<A> best{A{}, -1};
  if (row < rows)
    for (int64_t i = threadIdx.x % Lanes; i < n; i += Lanes)
      best = Op{}(best, Candidate<A>{device::to_compute(x[row * n + i]), i});
  if constexpr (Lanes == 32) {
    best = device::warp_reduce(best, Op{});
  } else {
    __shared__ Candidate<A> shared[32];
    best = device::block_reduce(best, Op{}, Candidate<A>{A{}, -1}, shared);
  }
  if (row < rows && threadIdx.x % Lanes == 0) y[row] = best.index;
}

// inner > 1: a thread an output; neighbours read neighbouring elements.
template <typename T, typename Op>
__global__ void __launch_bounds__(kThreads)
    arg_columns(const T* __restrict__ x, int64_t* y, int64_t outputs, int64_t n, int64_t inner) {
  using A = device::Compute<T>;
  const int64_t o = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (o >= outputs) return;
  const T* from = x + o / inner * n * inner + o % inner;
  Candidate<A> best{A{}, -1};
  for (int64_t i = 0; i < n; ++i) best = Op{}(best, Candidate<A>{device::to_compute(from[i * inner]), i});
  y[o] = best.index;
}

template <typename T, typename Op>
cudaError_t launch(const ArgParams& p, cudaStream_t stream) {
  const T* x = static_cast<const T*>(p.x);
  const int64_t outputs = p.outer * p.inner;
  if (p.inner > 1)
    arg_columns<T, Op><<<device::blocks_for(outputs, kThreads), kThreads, 0, stream>>>(x, p.y, outputs, p.n, p.inner);
  else if (p.n <= 1024)
    arg_rows<T, Op, 32><<<device::blocks_for(outputs, kThreads / 32), kThreads, 0, stream>>>(x, p.y, outputs, p.n);
  else
    arg_rows<T, Op, kThreads><<<static_cast<unsigned>(outputs), kThreads, 0, stream>>>(x, p.y, outputs, p.n);
  return cudaGetLastError();
}

template <typename T>
cudaError_t dispatch(const ArgParams& p, cudaStream_t stream) {
  if (p.max) return p.last ? launch<T, Better<true, true>>(p, stream) : launch<T, Better<true, false>>(p, stream);
  return p.last ? launch<T, Better<false, true>>(p, stream) : launch<T, Better<false, false>>(p, stream);
}

}  // namespace

cudaError_t launch_arg(const ArgParams& p, cudaStream_t stream) {
  if (p.outer * p.inner == 0) return cudaSuccess;
  if (p.outer * p.inner > device::kMaxIndex32) return cudaErrorInvalidValue;
  switch (p.dtype) {
    case DType::kF32:
      return dispatch<float>(p, stream);
    case DType::kF16:
      return dispatch<__half>(p, stream);
    case DType::kBF16:
      return dispatch<__nv_bfloat16>(p, stream);
    case DType::kF64:
      return dispatch<double>(p, stream);
    case DType::kI32:
      return dispatch<int32_t>(p, stream);
    case DType::kI64:
      return dispatch<int64_t>(p, stream);
    case DType::kI8:
      return dispatch<int8_t>(p, stream);
    case DType::kU8:
      return dispatch<uint8_t>(p, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace cuvil
