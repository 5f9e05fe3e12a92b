#include "device/index.cuh"
#include "device/vec.cuh"
#include "kernels/transpose.cuh"

namespace cuvil {
namespace {

using device::Vec;

constexpr int kThreads = 256;

// A tile in shared memory is an array of rows, one an `a`, of 32-bit words along `b` (elements of 1 and 2 bytes share a
// word, which is assembled in registers; those of 8 bytes take two). Groups of four words, the 16 bytes that move at
// once, are permuted within a row by `swizzle`:
//   - filling: a warp's 8 vectors along `a` write rows V apart, into 8 different groups: no bank conflict;
//   - draining: 8 lanes read the 8 groups of half a row or a row: none either.
template <int Size>
struct Tile {
  static constexpr int kV = 16 / Size;                // elements of a 16-byte vector
  static constexpr int kA = 8 * kV;                   // rows: 128 bytes of input
  static constexpr int kWords = Size >= 4 ? 64 : 32;  // words of a row
  static constexpr int kB = kWords * 4 / Size;        // elements of a row
  static constexpr int kPerWord = Size >= 4 ? 1 : 4 / Size;
  static constexpr int kSlots = kB / kPerWord;  // loads along b: an element, or the elements of one word
  static constexpr int kWordsPerSlot = Size == 8 ? 2 : 1;

  static __device__ __forceinline__ int swizzle(int a, int word) {
    return a * kWords + ((((word >> 2) ^ (a / kV) ^ a) & 7) << 2 | (word & 3) | (word & ~31));
  }
};

struct Batch {
  int rank;
  device::FastDiv32 extent[14];
  int64_t in_stride[14];
  int64_t out_stride[14];
};

// The word of row k from kPerWord vectors, each of a different b.
template <int Size>
__device__ __forceinline__ Vec<uint32_t, Tile<Size>::kWordsPerSlot> pack(
    const Vec<device::Uint<Size>, Tile<Size>::kV> (&rows)[Tile<Size>::kPerWord], int k) {
  Vec<uint32_t, Tile<Size>::kWordsPerSlot> word;
  if constexpr (Size == 8) {
    word[0] = rows[0][k].x;
    word[1] = rows[0][k].y;
  } else {
    word[0] = 0;
#pragma unroll
    for (int r = 0; r < Tile<Size>::kPerWord; ++r) word[0] |= static_cast<uint32_t>(rows[r][k]) << (8 * Size * r);
  }
  return word;
}

template <int Size, bool VecIn, bool VecOut>
__global__ void __launch_bounds__(kThreads)
    transpose(const device::Uint<Size>* __restrict__ in, device::Uint<Size>* __restrict__ out, int64_t extent_a,
              int64_t extent_b, int64_t in_stride_b, int64_t out_stride_a, device::FastDiv32 tiles_a,
              device::FastDiv32 tiles_b, Batch batch) {
  using T = device::Uint<Size>;
  using Tl = Tile<Size>;
  __shared__ alignas(16) uint32_t tile[Tl::kA * Tl::kWords];

  uint32_t rest, ta, tb;
  tiles_a.divmod(blockIdx.x, rest, ta);
  tiles_b.divmod(rest, rest, tb);
  for (int d = batch.rank - 1; d >= 0; --d) {
    uint32_t i;
    batch.extent[d].divmod(rest, rest, i);
    in += i * batch.in_stride[d];
    out += i * batch.out_stride[d];
  }
  const int64_t a0 = static_cast<int64_t>(ta) * Tl::kA, b0 = static_cast<int64_t>(tb) * Tl::kB;
  in += a0 + b0 * in_stride_b;
  out += a0 * out_stride_a + b0;
  const int rows = static_cast<int>(min(static_cast<int64_t>(Tl::kA), extent_a - a0));
  const int columns = static_cast<int>(min(static_cast<int64_t>(Tl::kB), extent_b - b0));

  if constexpr (VecIn) {
#pragma unroll
    for (int slot0 = 0; slot0 < Tl::kSlots; slot0 += kThreads / 8) {
      const int a = threadIdx.x % 8 * Tl::kV, slot = slot0 + threadIdx.x / 8;
      Vec<T, Tl::kV> v[Tl::kPerWord] = {};
#pragma unroll
      for (int r = 0; r < Tl::kPerWord; ++r) {
        const int b = slot * Tl::kPerWord + r;
        // A vector that begins inside the row ends inside it: VecIn means that the extent is a multiple of kV.
        if (a < rows && b < columns) v[r] = device::load<T, Tl::kV>(in + b * in_stride_b + a);
      }
#pragma unroll
      for (int k = 0; k < Tl::kV; ++k)
        device::store(tile + Tl::swizzle(a + k, slot * Tl::kWordsPerSlot), pack<Size>(v, k));
    }
  } else {
    // 16 neighbouring elements a load: two rows of b share a warp, which leaves two-way conflicts at most.
    for (int i = threadIdx.x; i < Tl::kA * Tl::kSlots; i += kThreads) {
      const int a = i % 16 + i / (16 * Tl::kSlots) * 16, slot = i / 16 % Tl::kSlots;
      Vec<T, Tl::kV> v[Tl::kPerWord] = {};
#pragma unroll
      for (int r = 0; r < Tl::kPerWord; ++r) {
        const int b = slot * Tl::kPerWord + r;
        if (a < rows && b < columns) v[r][0] = in[b * in_stride_b + a];
      }
      device::store(tile + Tl::swizzle(a, slot * Tl::kWordsPerSlot), pack<Size>(v, 0));
    }
  }
  __syncthreads();

  if constexpr (VecOut) {
    constexpr int kGroups = Tl::kWords / 4;
#pragma unroll
    for (int i0 = 0; i0 < Tl::kA * kGroups; i0 += kThreads) {
      const int i = i0 + threadIdx.x, a = i / kGroups, group = i % kGroups;
      if (a < rows && group * Tl::kV < columns)
        *reinterpret_cast<uint4*>(out + a * out_stride_a + group * Tl::kV) =
            *reinterpret_cast<const uint4*>(tile + Tl::swizzle(a, group * 4));
    }
  } else {
    for (int i = threadIdx.x; i < Tl::kA * Tl::kB; i += kThreads) {
      const int a = i / Tl::kB, b = i % Tl::kB;
      const T* group = reinterpret_cast<const T*>(tile + Tl::swizzle(a, b / Tl::kV * 4));
      if (a < rows && b < columns) out[a * out_stride_a + b] = group[b % Tl::kV];
    }
  }
}

bool aligned(const void* base, int64_t extent, int64_t stride, int rank, const int64_t* batch_strides, int vector,
             int size) {
  bool ok = reinterpret_cast<uintptr_t>(base) % 16 == 0 && extent % vector == 0 && stride % vector == 0;
  for (int d = 0; d < rank; ++d) ok = ok && batch_strides[d] % vector == 0;
  return ok && vector * size == 16;
}

template <int Size>
cudaError_t launch(const TransposeParams& p, cudaStream_t stream) {
  using Tl = Tile<Size>;
  using T = device::Uint<Size>;
  Batch batch;
  batch.rank = p.batch_rank;
  const int64_t tiles_a = (p.extent_a + Tl::kA - 1) / Tl::kA, tiles_b = (p.extent_b + Tl::kB - 1) / Tl::kB;
  int64_t blocks = tiles_a * tiles_b;
  for (int d = 0; d < p.batch_rank; ++d) {
    blocks *= p.batch_extent[d];
    batch.extent[d] = device::FastDiv32(static_cast<uint32_t>(p.batch_extent[d]));
    batch.in_stride[d] = p.batch_in_stride[d];
    batch.out_stride[d] = p.batch_out_stride[d];
  }
  if (blocks == 0) return cudaSuccess;
  if (blocks > device::kMaxIndex32) return cudaErrorInvalidValue;
  const bool vec_in = aligned(p.input, p.extent_a, p.in_stride_b, p.batch_rank, p.batch_in_stride, Tl::kV, Size);
  const bool vec_out = aligned(p.output, p.extent_b, p.out_stride_a, p.batch_rank, p.batch_out_stride, Tl::kV, Size);
  const auto kernel = vec_in ? (vec_out ? transpose<Size, true, true> : transpose<Size, true, false>)
                             : (vec_out ? transpose<Size, false, true> : transpose<Size, false, false>);
  kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      static_cast<const T*>(p.input), static_cast<T*>(p.output), p.extent_a, p.extent_b, p.in_stride_b, p.out_stride_a,
      device::FastDiv32(static_cast<uint32_t>(tiles_a)), device::FastDiv32(static_cast<uint32_t>(tiles_b)), batch);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_transpose(const TransposeParams& p, cudaStream_t stream) {
  switch (p.element_size) {
    case 1:
      return launch<1>(p, stream);
    case 2:
      return launch<2>(p, stream);
    case 4:
      return launch<4>(p, stream);
    case 8:
      return launch<8>(p, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace cuvil
