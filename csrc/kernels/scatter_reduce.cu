#include "device/reduce.cuh"
#include "kernels/scatter_place.cuh"

namespace cuvil {
namespace {

using namespace device;

constexpr int kThreads = 256;

template <typename T>
__device__ __forceinline__ T combine(ScatterReduction reduction, T a, T b) {
  const Compute<T> x = to_compute(a), y = to_compute(b);
  switch (reduction) {
    case ScatterReduction::kAdd:
      return from_compute<T>(x + y);
    case ScatterReduction::kMul:
      return from_compute<T>(x * y);
    case ScatterReduction::kMax:
      return from_compute<T>(Max()(x, y));
    default:
      return from_compute<T>(Min()(x, y));
  }
}

// The word that atomicCAS takes which holds an element of T; an element of one or two bytes is a part of it.
template <typename T>
struct WordOf {
  using type = unsigned int;
};
template <>
struct WordOf<double> {
  using type = unsigned long long;
};
template <>
struct WordOf<int64_t> {
  using type = unsigned long long;
};
template <>
struct WordOf<uint64_t> {
  using type = unsigned long long;
};

template <typename T>
__device__ __forceinline__ void combine_atomically(ScatterReduction reduction, T* p, T update) {
  using Word = typename WordOf<T>::type;
  const uintptr_t address = reinterpret_cast<uintptr_t>(p);
  Word* word = reinterpret_cast<Word*>(address & ~uintptr_t{sizeof(Word) - 1});
  const int at = static_cast<int>(address & (sizeof(Word) - 1)) / static_cast<int>(sizeof(T));
  union Parts {
    Word word;
    T element[sizeof(Word) / sizeof(T)];
    __device__ Parts() {}
  } seen, next;
  seen.word = *static_cast<volatile Word*>(word);
  for (;;) {
    next.word = seen.word;
    next.element[at] = combine(reduction, seen.element[at], update);
    const Word found = atomicCAS(word, seen.word, next.word);
    if (found == seen.word) return;
    seen.word = found;
  }
}

template <typename T, typename Params>
__global__ void __launch_bounds__(kThreads) scatter_atomic(Params p, ScatterReduction reduction, int64_t total) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= total) return;
  const int64_t place = scatter_place(p, i);
  if (place >= 0) combine_atomically(reduction, static_cast<T*>(p.output) + place, static_cast<const T*>(p.updates)[i]);
}

// A thread takes `steps` updates, `stride` apart, one after the other; no other thread's can meet the same places.
template <typename T, typename Params>
__global__ void __launch_bounds__(kThreads)
    scatter_in_order(Params p, ScatterReduction reduction, int64_t lines, int64_t steps, int64_t stride) {
  const int64_t line = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (line >= lines) return;
  int64_t i = line / stride * stride * steps + line % stride;
  for (int64_t s = 0; s < steps; ++s, i += stride) {
    const int64_t place = scatter_place(p, i);
    if (place < 0) continue;
    T* target = static_cast<T*>(p.output) + place;
    *target = combine(reduction, *target, static_cast<const T*>(p.updates)[i]);
  }
}

// Updates in sequence: those along the axis; the tuples, which may all name one place.
int64_t steps_of(const ScatterElementsParams& p) { return p.extent[p.axis]; }
int64_t steps_of(const ScatterNDParams& p) { return p.tuples; }
int64_t stride_of(const ScatterElementsParams& p) {
  int64_t stride = 1;
  for (int d = p.axis + 1; d < p.rank; ++d) stride *= p.extent[d];
  return stride;
}
int64_t stride_of(const ScatterNDParams& p) { return p.inner; }

template <typename T, typename Params>
cudaError_t launch(const Params& p, ScatterReduction reduction, bool rounds, cudaStream_t stream) {
  const int64_t total = p.updates_count(), steps = steps_of(p);
  if (rounds && (reduction == ScatterReduction::kAdd || reduction == ScatterReduction::kMul) &&
      steps <= kOrderedUpdates) {
    const int64_t lines = total / steps;
    scatter_in_order<T><<<blocks_for(lines, kThreads), kThreads, 0, stream>>>(p, reduction, lines, steps, stride_of(p));
  } else {
    scatter_atomic<T><<<blocks_for(total, kThreads), kThreads, 0, stream>>>(p, reduction, total);
  }
  return cudaGetLastError();
}

template <typename Params>
cudaError_t launch(const Params& p, ScatterReduction reduction, DType dtype, cudaStream_t stream) {
  if (p.updates_count() == 0) return cudaSuccess;
  switch (dtype) {
    case DType::kF32:
      return launch<float>(p, reduction, true, stream);
    case DType::kF16:
      return launch<__half>(p, reduction, true, stream);
    case DType::kBF16:
      return launch<__nv_bfloat16>(p, reduction, true, stream);
    case DType::kF64:
      return launch<double>(p, reduction, true, stream);
    case DType::kI8:
      return launch<int8_t>(p, reduction, false, stream);
    case DType::kU8:
      return launch<uint8_t>(p, reduction, false, stream);
    case DType::kI16:
      return launch<int16_t>(p, reduction, false, stream);
    case DType::kU16:
      return launch<uint16_t>(p, reduction, false, stream);
    case DType::kI32:
      return launch<int32_t>(p, reduction, false, stream);
    case DType::kU32:
      return launch<uint32_t>(p, reduction, false, stream);
    case DType::kI64:
      return launch<int64_t>(p, reduction, false, stream);
    case DType::kU64:
      return launch<uint64_t>(p, reduction, false, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t launch_scatter_elements(const ScatterElementsParams& p, ScatterReduction reduction, DType dtype,
                                    cudaStream_t stream) {
  return launch(p, reduction, dtype, stream);
}

cudaError_t launch_scatter_nd(const ScatterNDParams& p, ScatterReduction reduction, DType dtype, cudaStream_t stream) {
  return launch(p, reduction, dtype, stream);
}

}  // namespace cuvil
