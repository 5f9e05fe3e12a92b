#include <algorithm>
#include <cstdlib>

#include "device/index.cuh"
#include "device/vec.cuh"
#include "kernels/strided_copy.cuh"

namespace cuvil {
namespace {

using device::Vec;

constexpr int kThreads = 256;

template <typename Div, int Rank>
struct Layout {
  Div extent[Rank];
  int64_t stride[Rank];
  int rank;
};

// Input offset of output element i. The loop runs from the innermost dimension out.
template <int Rank, bool Exact, typename Div>
__device__ __forceinline__ int64_t input_offset(const Layout<Div, Rank>& l, typename Div::Index i) {
  int64_t offset = 0;
  if constexpr (Exact) {
#pragma unroll
    for (int d = Rank - 1; d > 0; --d) {
      typename Div::Index q, r;
      l.extent[d].divmod(i, q, r);
      offset += static_cast<int64_t>(r) * l.stride[d];
      i = q;
    }
  } else {
    for (int d = l.rank - 1; d > 0; --d) {
      typename Div::Index q, r;
      l.extent[d].divmod(i, q, r);
      offset += static_cast<int64_t>(r) * l.stride[d];
      i = q;
    }
  }
  return offset + static_cast<int64_t>(i) * l.stride[0];
}

// A thread writes V neighbouring elements in one access. SameRow: the innermost extent is a multiple of V, so that the
// V elements share one decomposition.
template <typename T, int V, bool SameRow, int Rank, bool Exact, typename Div>
__global__ void __launch_bounds__(kThreads)
    strided_copy(const T* __restrict__ in, T* __restrict__ out, int64_t groups, Layout<Div, Rank> l) {
  using Index = typename Div::Index;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t g = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; g < groups; g += step) {
    const Index first = static_cast<Index>(g * V);
    Vec<T, V> v;
    if constexpr (SameRow) {
      const int64_t offset = input_offset<Rank, Exact>(l, first);
      const int64_t inner = l.stride[Exact ? Rank - 1 : l.rank - 1];
#pragma unroll
      for (int k = 0; k < V; ++k) v[k] = in[offset + k * inner];
    } else {
#pragma unroll
      for (int k = 0; k < V; ++k) v[k] = in[input_offset<Rank, Exact>(l, first + k)];
    }
    device::store(out + g * V, v);
  }
}

template <typename T, int V, bool SameRow, int Rank, bool Exact, typename Div>
cudaError_t launch(const StridedCopyParams& p, int64_t size, cudaStream_t stream) {
  Layout<Div, Rank> l;
  l.rank = p.rank;
  for (int d = 0; d < p.rank; ++d) {
    l.extent[d] = Div(static_cast<typename Div::Index>(p.extent[d]));
    l.stride[d] = p.stride[d];
  }
  const int64_t groups = size / V;
  const unsigned blocks = static_cast<unsigned>(std::min<int64_t>((groups + kThreads - 1) / kThreads, 1 << 30));
  strided_copy<T, V, SameRow, Rank, Exact, Div>
      <<<blocks, kThreads, 0, stream>>>(static_cast<const T*>(p.input), static_cast<T*>(p.output), groups, l);
  return cudaGetLastError();
}

template <typename T, int V, bool SameRow>
cudaError_t dispatch_rank(const StridedCopyParams& p, int64_t size, cudaStream_t stream) {
  if (size > device::kMaxIndex32) return launch<T, V, SameRow, 16, false, device::Div64>(p, size, stream);
  switch (p.rank) {
    case 1:
      return launch<T, V, SameRow, 1, true, device::FastDiv32>(p, size, stream);
    case 2:
      return launch<T, V, SameRow, 2, true, device::FastDiv32>(p, size, stream);
    case 3:
      return launch<T, V, SameRow, 3, true, device::FastDiv32>(p, size, stream);
    case 4:
      return launch<T, V, SameRow, 4, true, device::FastDiv32>(p, size, stream);
    default:
      return launch<T, V, SameRow, 16, false, device::FastDiv32>(p, size, stream);
  }
}

template <typename T>
cudaError_t dispatch(const StridedCopyParams& p, cudaStream_t stream) {
  int64_t size = 1;
  for (int d = 0; d < p.rank; ++d) size *= p.extent[d];
  if (size == 0) return cudaSuccess;
  constexpr int V = device::kVec16<T>;
  const bool aligned = reinterpret_cast<uintptr_t>(p.output) % 16 == 0 && size % V == 0;
  // A view that is contiguous inside reads best one element a lane: `widen` has already made the elements as wide as
  // the alignment allows.
  const bool gathers = p.stride[p.rank - 1] != 1;
  if constexpr (V > 1) {
    if (aligned && gathers && p.extent[p.rank - 1] % V == 0) return dispatch_rank<T, V, true>(p, size, stream);
    if (aligned && gathers) return dispatch_rank<T, V, false>(p, size, stream);
  }
  return dispatch_rank<T, 1, true>(p, size, stream);
}

}  // namespace

cudaError_t launch_strided_copy(const StridedCopyParams& p, cudaStream_t stream) {
  switch (p.element_size) {
    case 1:
      return dispatch<device::Uint<1>>(p, stream);
    case 2:
      return dispatch<device::Uint<2>>(p, stream);
    case 4:
      return dispatch<device::Uint<4>>(p, stream);
    case 8:
      return dispatch<device::Uint<8>>(p, stream);
    case 16:
      return dispatch<device::Uint<16>>(p, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace cuvil
