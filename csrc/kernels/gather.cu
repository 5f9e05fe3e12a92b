#include "device/by_type.cuh"
#include "device/index.cuh"
#include "device/vec.cuh"
#include "kernels/gather.cuh"

namespace cuvil {
namespace {

constexpr int kThreads = 256;

// `inner`, `data` and `output` are in units of T here.
template <typename T, typename Div>
__global__ void __launch_bounds__(kThreads)
    gather(const T* __restrict__ data, const void* __restrict__ indices, T* __restrict__ output, bool wide,
           int64_t total, int64_t axis, Div count, Div inner, int* out_of_range) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < total; i += step) {
    typename Div::Index row, column, outer, j;
    inner.divmod(static_cast<typename Div::Index>(i), row, column);
    count.divmod(row, outer, j);
    const int64_t index = device::resolve_index(device::read_index(indices, wide, j), axis, out_of_range);
    T v{};
    if (index >= 0) v = data[(static_cast<int64_t>(outer) * axis + index) * inner.divisor + column];
    output[i] = v;
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) gather_elements(GatherElementsParams p, int64_t total) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < total; i += step) {
    int64_t offset = 0, rest = i;
    for (int d = p.rank - 1; d >= 0; --d) {
      const int64_t q = rest / p.extent[d], r = rest - q * p.extent[d];
      if (d != p.axis) offset += r * p.data_stride[d];
      rest = q;
    }
    const int64_t index =
        device::resolve_index(device::read_index(p.indices, p.indices64, i), p.axis_extent, p.out_of_range);
    T v{};
    if (index >= 0) v = static_cast<const T*>(p.data)[offset + index * p.data_stride[p.axis]];
    static_cast<T*>(p.output)[i] = v;
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) gather_nd(GatherNDParams p) {
  const int64_t total = p.tuples * p.inner, step = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t* indices = static_cast<const int64_t*>(p.indices);
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < total; i += step) {
    const int64_t tuple = i / p.inner;
    int64_t offset = tuple / p.per_batch * p.batch_stride + (i - tuple * p.inner);
    bool inside = true;
    for (int d = 0; d < p.depth; ++d) {
      const int64_t index = device::resolve_index(indices[tuple * p.depth + d], p.extent[d], p.out_of_range);
      inside = inside && index >= 0;
      offset += index * p.stride[d];
    }
    T v{};
    if (inside) v = static_cast<const T*>(p.data)[offset];
    static_cast<T*>(p.output)[i] = v;
  }
}

unsigned grid(int64_t total) {
  const int64_t blocks = (total + kThreads - 1) / kThreads;
  return static_cast<unsigned>(blocks < (1 << 30) ? blocks : 1 << 30);
}

template <typename T>
cudaError_t gather_as(const GatherParams& p, cudaStream_t stream) {
  const int64_t inner = p.inner * p.element_size / static_cast<int64_t>(sizeof(T));
  const int64_t total = p.outer * p.count * inner;
  const T* data = static_cast<const T*>(p.data);
  T* output = static_cast<T*>(p.output);
  if (total <= device::kMaxIndex32)
    gather<T, device::FastDiv32><<<grid(total), kThreads, 0, stream>>>(
        data, p.indices, output, p.indices64, total, p.axis, device::FastDiv32(static_cast<uint32_t>(p.count)),
        device::FastDiv32(static_cast<uint32_t>(inner)), p.out_of_range);
  else
    gather<T, device::Div64><<<grid(total), kThreads, 0, stream>>>(
        data, p.indices, output, p.indices64, total, p.axis, device::Div64(static_cast<uint64_t>(p.count)),
        device::Div64(static_cast<uint64_t>(inner)), p.out_of_range);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_gather(const GatherParams& p, cudaStream_t stream) {
  if (p.outer * p.count * p.inner == 0) return cudaSuccess;
  const uint64_t bits = reinterpret_cast<uintptr_t>(p.data) | reinterpret_cast<uintptr_t>(p.output) |
                        static_cast<uint64_t>(p.inner * p.element_size) | 16;
  switch (bits & -bits) {  // the widest access that addresses and row length allow
    case 1:
      return gather_as<device::Uint<1>>(p, stream);
    case 2:
      return gather_as<device::Uint<2>>(p, stream);
    case 4:
      return gather_as<device::Uint<4>>(p, stream);
    case 8:
      return gather_as<device::Uint<8>>(p, stream);
    default:
      return gather_as<device::Uint<16>>(p, stream);
  }
}

cudaError_t launch_gather_elements(const GatherElementsParams& p, cudaStream_t stream) {
  int64_t total = 1;
  for (int d = 0; d < p.rank; ++d) total *= p.extent[d];
  if (total == 0) return cudaSuccess;
  return device::by_element_size<8>(p.element_size, [&]<typename T>() {
    gather_elements<T><<<grid(total), kThreads, 0, stream>>>(p, total);
    return cudaGetLastError();
  });
}

cudaError_t launch_gather_nd(const GatherNDParams& p, cudaStream_t stream) {
  const int64_t total = p.tuples * p.inner;
  if (total == 0) return cudaSuccess;
  return device::by_element_size<8>(p.element_size, [&]<typename T>() {
    gather_nd<T><<<grid(total), kThreads, 0, stream>>>(p);
    return cudaGetLastError();
  });
}

}  // namespace cuvil
