#include "device/by_type.cuh"
#include "device/index.cuh"
#include "device/reduce.cuh"
#include "device/vec.cuh"
#include "kernels/strided_product.cuh"

namespace cuvil {
namespace {

using device::Compute;

constexpr int kThreads = 256;

template <typename Div>
struct Walk {
  int outer, rank;  // dimensions of y, and with the summed ones
  int64_t outputs, terms;
  Div extent[kMaxProductRank];
  int64_t step_a[kMaxProductRank], step_b[kMaxProductRank];

  // Adds the offsets of item i of dimensions [from, to).
  __device__ __forceinline__ void move(int from, int to, typename Div::Index i, int64_t* a, int64_t* b) const {
    for (int d = to - 1; d >= from; --d) {
      typename Div::Index q, r;
      extent[d].divmod(i, q, r);
      *a += static_cast<int64_t>(r) * step_a[d];
      *b += static_cast<int64_t>(r) * step_b[d];
      i = q;
    }
  }
};

// `Lanes` threads share an output: 1 for short sums, a warp for long ones.
template <typename T, int Lanes, typename Div>
__global__ void __launch_bounds__(kThreads)
    strided_product(const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ y, Walk<Div> w) {
  using Index = typename Div::Index;
  const int64_t o = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / Lanes;
  const bool live = o < w.outputs;
  Compute<T> sum = 0;
  if (live) {
    int64_t from_a = 0, from_b = 0;
    w.move(0, w.outer, static_cast<Index>(o), &from_a, &from_b);
    for (int64_t k = threadIdx.x % Lanes; k < w.terms; k += Lanes) {
      int64_t at_a = from_a, at_b = from_b;
      w.move(w.outer, w.rank, static_cast<Index>(k), &at_a, &at_b);
      sum += device::to_compute(a[at_a]) * device::to_compute(b[at_b]);
    }
  }
  if constexpr (Lanes > 1) sum = device::warp_reduce<Lanes>(sum, device::Sum{});
  if (live && threadIdx.x % Lanes == 0) y[o] = device::from_compute<T>(sum);
}

template <typename T, typename Div>
cudaError_t launch(const StridedProductParams& p, int64_t outputs, int64_t terms, cudaStream_t stream) {
  Walk<Div> w{};
  w.outer = p.rank - p.reduced;
  w.rank = p.rank;
  w.outputs = outputs;
  w.terms = terms;
  for (int d = 0; d < p.rank; ++d) {
    w.extent[d] = Div(static_cast<typename Div::Index>(p.extent[d]));
    w.step_a[d] = p.step_a[d];
    w.step_b[d] = p.step_b[d];
  }
  const T *a = static_cast<const T*>(p.a), *b = static_cast<const T*>(p.b);
  T* y = static_cast<T*>(p.y);
  if (terms >= 32) {
    const int64_t blocks = (outputs + kThreads / 32 - 1) / (kThreads / 32);
    if (blocks > device::kMaxIndex32) return cudaErrorInvalidValue;
    strided_product<T, 32, Div><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(a, b, y, w);
  } else {
    strided_product<T, 1, Div><<<device::blocks_for(outputs, kThreads), kThreads, 0, stream>>>(a, b, y, w);
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_strided_product(const StridedProductParams& p, cudaStream_t stream) {
  if (p.rank < 0 || p.rank > kMaxProductRank) return cudaErrorInvalidValue;
  int64_t outputs = 1, terms = 1;
  for (int d = 0; d < p.rank; ++d) (d < p.rank - p.reduced ? outputs : terms) *= p.extent[d];
  if (outputs == 0) return cudaSuccess;
  const bool narrow = outputs <= device::kMaxIndex32 && terms <= device::kMaxIndex32;
  return device::by_float_type(p.dtype, [&]<typename T>() {
    return narrow ? launch<T, device::FastDiv32>(p, outputs, terms, stream)
                  : launch<T, device::Div64>(p, outputs, terms, stream);
  });
}

}  // namespace cuvil
