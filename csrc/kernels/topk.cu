#include <type_traits>
#include <utility>

#include "device/index.cuh"
#include "device/vec.cuh"
#include "kernels/topk.cuh"

namespace cuvil {
namespace {

constexpr int kThreads = 256;
constexpr int32_t kNone = 0x7fffffff;  // the index of padding: after every candidate

// An unsigned integer in the order of the values: the sign bit of integers flipped, all bits of negative floats.
// Adding a zero makes -0 the equal of +0.
template <typename T>
__device__ __forceinline__ auto ordered(T x) {
  if constexpr (sizeof(T) == 8) {
    uint64_t bits;
    x = x + T{0};
    memcpy(&bits, &x, 8);
    constexpr uint64_t kSign = uint64_t{1} << 63;
    if constexpr (std::is_same_v<T, double>) {
      if (x != x) return ~uint64_t{0};
      return bits & kSign ? ~bits : bits | kSign;
    }
    return bits ^ kSign;
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<uint32_t>(static_cast<int32_t>(x)) ^ 0x80000000u;
  } else {
    const float f = device::to_compute(x) + 0.0f;
    uint32_t bits;
    memcpy(&bits, &f, 4);
    if (f != f) return ~uint32_t{0};
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  }
}

// Sorts `size` (a power of two) pairs in shared memory by key, then index, both ascending.
template <typename Key>
__device__ void bitonic_sort(Key* keys, int32_t* indices, int size) {
  for (int run = 2; run <= size; run *= 2) {
    for (int distance = run / 2; distance > 0; distance /= 2) {
      __syncthreads();
      for (int t = threadIdx.x; t < size / 2; t += kThreads) {
        const int a = t / distance * 2 * distance + t % distance, b = a + distance;
        const bool ascending = (a & run) == 0;
        const bool after = keys[a] > keys[b] || (keys[a] == keys[b] && indices[a] > indices[b]);
        if (after == ascending) {
          const Key key = keys[a];
          keys[a] = keys[b];
          keys[b] = key;
          const int32_t index = indices[a];
          indices[a] = indices[b];
          indices[b] = index;
        }
      }
    }
  }
  __syncthreads();
}

// One block sorts one chunk of one row's candidates and keeps the first `keep`. Candidates are all n elements
// (`from` null), or the `count` indices that the round before kept. The last round, of one chunk a row, writes results.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    topk_round(TopKParams p, const int32_t* from, int64_t count, int64_t chunks, int keep, int32_t* to) {
  using Key = decltype(ordered(T{}));
  __shared__ Key keys[kTopKChunk];
  __shared__ int32_t indices[kTopKChunk];
  const int64_t row = blockIdx.x / chunks, chunk = blockIdx.x - row * chunks;
  const int64_t outer = row / p.inner, column = row - outer * p.inner;
  const T* x = static_cast<const T*>(p.x) + outer * p.n * p.inner + column;
  const int64_t begin = chunk * kTopKChunk;
  const int length = static_cast<int>(min(kTopKChunk, count - begin));
  int size = 2;
  while (size < length) size *= 2;

  for (int i = threadIdx.x; i < size; i += kThreads) {
    int32_t index = kNone;
    if (i < length) index = from ? from[row * count + begin + i] : static_cast<int32_t>(begin + i);
    Key key = ~Key{0};
    if (index != kNone) {
      key = ordered(x[index * p.inner]);
      if (p.largest) key = ~key;
    }
    keys[i] = key;
    indices[i] = index;
  }
  bitonic_sort(keys, indices, size);

  for (int i = threadIdx.x; i < keep; i += kThreads) {
    const int32_t index = i < size ? indices[i] : kNone;
    if (to) {
      to[(row * chunks + chunk) * keep + i] = index;
    } else {
      const int64_t o = (outer * p.k + i) * p.inner + column;
      static_cast<T*>(p.values)[o] = x[index * p.inner];
      p.indices[o] = index;
    }
  }
}

int64_t chunks_of(int64_t count) { return (count + kTopKChunk - 1) / kTopKChunk; }

template <typename T>
cudaError_t launch(const TopKParams& p, int32_t* scratch, cudaStream_t stream) {
  const int64_t rows = p.outer * p.inner;
  const int keep = static_cast<int>(p.k);
  const int32_t* from = nullptr;
  // Rounds alternate between the two halves of the scratch memory; the first round fills the larger one.
  int32_t* here = scratch;
  int32_t* there = scratch + rows * chunks_of(p.n) * keep;
  int64_t count = p.n;
  while (true) {
    const int64_t chunks = chunks_of(count), blocks = rows * chunks;
    if (blocks > device::kMaxIndex32) return cudaErrorInvalidValue;
    const bool last = chunks == 1;
    topk_round<T>
        <<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(p, from, count, chunks, keep, last ? nullptr : here);
    if (const cudaError_t code = cudaGetLastError(); code != cudaSuccess || last) return code;
    from = here;
    count = chunks * keep;
    std::swap(here, there);
  }
}

}  // namespace

size_t topk_scratch_bytes(const TopKParams& p) {
  const int64_t chunks = chunks_of(p.n);
  if (chunks <= 1) return 0;
  const int64_t first = chunks * p.k, second = chunks_of(first) * p.k;
  return static_cast<size_t>(p.outer * p.inner * (first + second)) * sizeof(int32_t);
}

cudaError_t launch_topk(const TopKParams& p, void* scratch, cudaStream_t stream) {
  if (p.outer * p.inner * p.k == 0) return cudaSuccess;
  if (p.n > device::kMaxIndex32 || (p.n > kTopKChunk && p.k > kTopKMaxOfLongRows)) return cudaErrorInvalidValue;
  int32_t* memory = static_cast<int32_t*>(scratch);
  switch (p.dtype) {
    case DType::kF32:
      return launch<float>(p, memory, stream);
    case DType::kF16:
      return launch<__half>(p, memory, stream);
    case DType::kBF16:
      return launch<__nv_bfloat16>(p, memory, stream);
    case DType::kF64:
      return launch<double>(p, memory, stream);
    case DType::kI32:
      return launch<int32_t>(p, memory, stream);
    case DType::kI64:
      return launch<int64_t>(p, memory, stream);
    case DType::kI16:
      return launch<int16_t>(p, memory, stream);
    case DType::kI8:
      return launch<int8_t>(p, memory, stream);
    case DType::kU8:
      return launch<uint8_t>(p, memory, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace cuvil
