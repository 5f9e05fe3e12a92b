#include <cub/device/device_merge_sort.cuh>
#include <cub/device/device_scan.cuh>

#include "device/index.cuh"
#include "device/vec.cuh"
#include "kernels/unique.cuh"

namespace cuvil {
namespace {

constexpr int kThreads = 256;

// Element i as an integer of the same order.
__device__ __forceinline__ int64_t ordered(const void* x, DType dtype, int64_t i) {
  double value = 0;
  switch (dtype) {
    case DType::kI64:
      return static_cast<const int64_t*>(x)[i];
    case DType::kI32:
      return static_cast<const int32_t*>(x)[i];
    case DType::kI8:
      return static_cast<const int8_t*>(x)[i];
    case DType::kU8:
    case DType::kBool:
      return static_cast<const uint8_t*>(x)[i];
    case DType::kF32:
      value = static_cast<const float*>(x)[i];
      break;
    case DType::kF16:
      value = __half2float(static_cast<const __half*>(x)[i]);
      break;
    case DType::kBF16:
      value = __bfloat162float(static_cast<const __nv_bfloat16*>(x)[i]);
      break;
    default:
      value = static_cast<const double*>(x)[i];
  }
  if (value != value) return INT64_MAX;
  if (value == 0) return 0;
  const int64_t bits = __double_as_longlong(value);
  return bits < 0 ? INT64_MIN - bits : bits;
}

// -1, 0 or 1 as slice a is below, equal to or above slice b.
__device__ __forceinline__ int compare(const UniqueParams& p, int64_t a, int64_t b) {
  for (int64_t o = 0; o < p.outer; ++o) {
    const int64_t left = (o * p.n + a) * p.inner, right = (o * p.n + b) * p.inner;
    for (int64_t i = 0; i < p.inner; ++i) {
      const int64_t l = ordered(p.x, p.dtype, left + i), r = ordered(p.x, p.dtype, right + i);
      if (l != r) return l < r ? -1 : 1;
    }
  }
  return 0;
}

// Equal slices in the order of their indices, so that a group's first is the first of the tensor.
struct Below {
  UniqueParams p;
  __device__ bool operator()(int64_t a, int64_t b) const {
    const int order = compare(p, a, b);
    return order < 0 || (order == 0 && a < b);
  }
};

// Arrays of [n]. Groups are numbered from 1 here: `group` by the place in sorted order, `rank` by that in the tensor.
struct Work {
  int64_t *order, *heads, *group, *firsts, *rank;
  void* library;
  size_t library_bytes;
};

__device__ __forceinline__ int64_t item() { return static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; }

__global__ void __launch_bounds__(kThreads) number_slices(int64_t* order, int64_t* zeros, int64_t n) {
  const int64_t i = item();
  if (i >= n) return;
  order[i] = i;
  zeros[i] = 0;
}

// heads[i] = 1 where a group starts in sorted order, and firsts[i] = 1 for the slices that start one.
__global__ void __launch_bounds__(kThreads) find_heads(const UniqueParams p, const Work w) {
  const int64_t i = item();
  if (i >= p.n) return;
  const bool head = i == 0 || compare(p, w.order[i - 1], w.order[i]) != 0;
  w.heads[i] = head;
  if (head) w.firsts[w.order[i]] = 1;
}

// starts[g] = where group g starts in sorted order.
__global__ void __launch_bounds__(kThreads) find_starts(const UniqueParams p, const Work w, int64_t* starts) {
  const int64_t i = item();
  if (i >= p.n) return;
  if (w.heads[i]) starts[w.group[i] - 1] = i;
  if (i == p.n - 1) *p.groups = w.group[i];
}

__global__ void __launch_bounds__(kThreads) describe_groups(const UniqueParams p, const Work w, const int64_t* starts) {
  const int64_t i = item();
  if (i >= p.n) return;
  const int64_t start = starts[w.group[i] - 1];
  const int64_t g = (p.sorted ? w.group[i] : w.rank[w.order[start]]) - 1;
  p.inverse[w.order[i]] = g;
  if (i == start) p.first[g] = w.order[i];
  if (i == p.n - 1 || w.heads[i + 1]) p.counts[g] = i + 1 - start;
}

// The most that sorting and scanning want; asked without memory, CUB tells instead of working.
size_t library_bytes(int64_t n) {
  size_t sort = 0, scan = 0;
  int64_t* none = nullptr;
  if (cub::DeviceMergeSort::SortKeys(nullptr, sort, none, n, Below{}) != cudaSuccess) return 0;
  if (cub::DeviceScan::InclusiveSum(nullptr, scan, none, none, n) != cudaSuccess) return 0;
  return sort > scan ? sort : scan;
}

}  // namespace

size_t unique_scratch_bytes(int64_t n) { return 5 * sizeof(int64_t) * static_cast<size_t>(n) + library_bytes(n); }

cudaError_t launch_unique(const UniqueParams& p, void* scratch, cudaStream_t stream) {
  const bool unknown =
      p.dtype == DType::kU16 || p.dtype == DType::kI16 || p.dtype == DType::kU32 || p.dtype == DType::kU64;
  if (unknown || p.n > int64_t{kThreads} * INT32_MAX) return cudaErrorInvalidValue;
  auto* memory = static_cast<int64_t*>(scratch);
  Work w{memory,           memory + p.n,     memory + 2 * p.n,  memory + 3 * p.n,
         memory + 4 * p.n, memory + 5 * p.n, library_bytes(p.n)};
  const unsigned blocks = device::blocks_for(p.n, kThreads);
  number_slices<<<blocks, kThreads, 0, stream>>>(w.order, w.firsts, p.n);
  cudaError_t code = cub::DeviceMergeSort::SortKeys(w.library, w.library_bytes, w.order, p.n, Below{p}, stream);
  if (code != cudaSuccess) return code;
  find_heads<<<blocks, kThreads, 0, stream>>>(p, w);
  code = cub::DeviceScan::InclusiveSum(w.library, w.library_bytes, w.heads, w.group, p.n, stream);
  if (code == cudaSuccess && !p.sorted)
    code = cub::DeviceScan::InclusiveSum(w.library, w.library_bytes, w.firsts, w.rank, p.n, stream);
  if (code != cudaSuccess) return code;
  int64_t* starts = w.firsts;  // used up
  find_starts<<<blocks, kThreads, 0, stream>>>(p, w, starts);
  describe_groups<<<blocks, kThreads, 0, stream>>>(p, w, starts);
  return cudaGetLastError();
}

}  // namespace cuvil
