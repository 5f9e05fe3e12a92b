#include "device/index.cuh"
#include "device/vec.cuh"
#include "kernels/transpose.cuh"

namespace cuvil {
namespace {

using device::Vec;

constexpr int kThreads = 256;

// A tile in shared memory is an array of rows, one an `a`, of 32-bit words along `b` (elements of 1 and 2 bytes share a
// word, which is assembled in registers; those of 8 bytes take two). A tile has VA 16-byte vectors along `a`: 8 for a
// square one, 2 or 32 where one of the extents is small and a square tile would be mostly padding.
//
// `place` decides where a word lies, in groups of four words, the 16 bytes that move at once:
//   - filling, a warp writes from up to 8 vectors along `a`, whose rows are V apart, into as many different groups;
//   - draining, 8 neighbouring lanes read 8 different groups.
// Neither has bank conflicts; filling element by element has two-way ones at most in square tiles.
template <int Size, int VA>
struct Tile {
  static constexpr int kV = 16 / Size;                          // elements of a 16-byte vector
  static constexpr int kA = VA * kV;                            // rows
  static constexpr int kPerWord = Size >= 4 ? 1 : 4 / Size;     // elements of a word
  static constexpr int kWordsPerSlot = Size == 8 ? 2 : 1;       // a slot is what one thread fills at a time
  static constexpr int kSlotsPerPass = kThreads / VA;           // by all threads, a vector along `a` each
  static constexpr int kPasses = Size == 4 && VA == 8 ? 2 : 1;  // two loads in flight where one is 16 bytes
  static constexpr int kSlots = kSlotsPerPass * kPasses;        // of a row
  static constexpr int kWords = kSlots * kWordsPerSlot;         // of a row
  static constexpr int kB = kSlots * kPerWord;                  // elements of a row
  static constexpr int kPad = VA == 32 ? 4 : 0;                 // words after every kV rows
  static constexpr int kSize = kA * kWords + kPad * VA;         // words of the tile
  static constexpr int kLanesA = VA < 8 ? VA : 8;               // lanes of a warp along `a`

  static __device__ __forceinline__ int place(int a, int word) {
    if constexpr (VA == 32) return a * kWords + a / kV * kPad + word;  // rows of 8 words: too short to permute
    const int mix = VA == 8 ? (a / kV) ^ a : (kV == 4 ? a : (a / kV * 4) ^ a);
    return a * kWords + ((((word >> 2) ^ mix) & 7) << 2 | (word & 3) | (word & ~31));
  }
};

struct Batch {
  int rank;
  device::FastDiv32 extent[14];
  int64_t in_stride[14];
  int64_t out_stride[14];
};

// The word of row k from kPerWord vectors, each of a different b.
template <int Size, typename Tl>
__device__ __forceinline__ Vec<uint32_t, Tl::kWordsPerSlot> pack(
    const Vec<device::Uint<Size>, Tl::kV> (&rows)[Tl::kPerWord], int k) {
  Vec<uint32_t, Tl::kWordsPerSlot> word;
  if constexpr (Size == 8) {
    word[0] = rows[0][k].x;
    word[1] = rows[0][k].y;
  } else {
    word[0] = 0;
#pragma unroll
    for (int r = 0; r < Tl::kPerWord; ++r) word[0] |= static_cast<uint32_t>(rows[r][k]) << (8 * Size * r);
  }
  return word;
}

template <int Size, int VA, bool VecIn, bool VecOut>
__global__ void __launch_bounds__(kThreads)
    transpose(const device::Uint<Size>* __restrict__ in, device::Uint<Size>* __restrict__ out, int64_t extent_a,
              int64_t extent_b, int64_t in_stride_b, int64_t out_stride_a, device::FastDiv32 tiles_a,
              device::FastDiv32 tiles_b, Batch batch) {
  using T = device::Uint<Size>;
  using Tl = Tile<Size, VA>;
  __shared__ alignas(16) uint32_t tile[Tl::kSize];

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
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    constexpr int kWarpsA = VA / Tl::kLanesA;
    const int a = (lane % Tl::kLanesA + warp % kWarpsA * Tl::kLanesA) * Tl::kV;
    const int first = lane / Tl::kLanesA + warp / kWarpsA * (32 / Tl::kLanesA);
#pragma unroll
    for (int pass = 0; pass < Tl::kPasses; ++pass) {
      const int slot = first + pass * Tl::kSlotsPerPass;
      Vec<T, Tl::kV> v[Tl::kPerWord] = {};
#pragma unroll
      for (int r = 0; r < Tl::kPerWord; ++r) {
        const int b = slot * Tl::kPerWord + r;
        // A vector that begins inside the row ends inside it: VecIn means that the extent is a multiple of kV.
        if (a < rows && b < columns) v[r] = device::load<T, Tl::kV>(in + b * in_stride_b + a);
      }
#pragma unroll
      for (int k = 0; k < Tl::kV; ++k)
        device::store(tile + Tl::place(a + k, slot * Tl::kWordsPerSlot), pack<Size, Tl>(v, k));
    }
  } else {
    // Up to 16 neighbouring elements a load, so that two rows of b share a warp.
    constexpr int kRun = Tl::kA < 16 ? Tl::kA : 16;
    for (int i = threadIdx.x; i < Tl::kA * Tl::kSlots; i += kThreads) {
      const int a = i % kRun + i / (kRun * Tl::kSlots) * kRun, slot = i / kRun % Tl::kSlots;
      Vec<T, Tl::kV> v[Tl::kPerWord] = {};
#pragma unroll
      for (int r = 0; r < Tl::kPerWord; ++r) {
        const int b = slot * Tl::kPerWord + r;
        if (a < rows && b < columns) v[r][0] = in[b * in_stride_b + a];
      }
      device::store(tile + Tl::place(a, slot * Tl::kWordsPerSlot), pack<Size, Tl>(v, 0));
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
            *reinterpret_cast<const uint4*>(tile + Tl::place(a, group * 4));
    }
  } else {
    for (int i = threadIdx.x; i < Tl::kA * Tl::kB; i += kThreads) {
      const int a = i / Tl::kB, b = i % Tl::kB;
      const T* group = reinterpret_cast<const T*>(tile + Tl::place(a, b / Tl::kV * 4));
      if (a < rows && b < columns) out[a * out_stride_a + b] = group[b % Tl::kV];
    }
  }
}

bool aligned(const void* base, int64_t extent, int64_t stride, int rank, const int64_t* batch_strides, int vector) {
  bool ok = reinterpret_cast<uintptr_t>(base) % 16 == 0 && extent % vector == 0 && stride % vector == 0;
  for (int d = 0; d < rank; ++d) ok = ok && batch_strides[d] % vector == 0;
  return ok;
}

template <int Size, int VA>
cudaError_t launch(const TransposeParams& p, cudaStream_t stream) {
  using Tl = Tile<Size, VA>;
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
  const bool vec_in = aligned(p.input, p.extent_a, p.in_stride_b, p.batch_rank, p.batch_in_stride, Tl::kV);
  const bool vec_out = aligned(p.output, p.extent_b, p.out_stride_a, p.batch_rank, p.batch_out_stride, Tl::kV);
  const auto kernel = vec_in ? (vec_out ? transpose<Size, VA, true, true> : transpose<Size, VA, true, false>)
                             : (vec_out ? transpose<Size, VA, false, true> : transpose<Size, VA, false, false>);
  kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      static_cast<const T*>(p.input), static_cast<T*>(p.output), p.extent_a, p.extent_b, p.in_stride_b, p.out_stride_a,
      device::FastDiv32(static_cast<uint32_t>(tiles_a)), device::FastDiv32(static_cast<uint32_t>(tiles_b)), batch);
  return cudaGetLastError();
}

// Elements that the tiles cover, padding included.
template <int Size, int VA>
int64_t covered(const TransposeParams& p) {
  using Tl = Tile<Size, VA>;
  return (p.extent_a + Tl::kA - 1) / Tl::kA * Tl::kA * ((p.extent_b + Tl::kB - 1) / Tl::kB * Tl::kB);
}

// The square tile moves whole 128-byte lines on both sides: another one must save a quarter of its work.
template <int Size>
cudaError_t dispatch_tile(const TransposeParams& p, cudaStream_t stream) {
  const int64_t square = covered<Size, 8>(p), flat = covered<Size, 32>(p), tall = covered<Size, 2>(p);
  if (flat <= tall && 4 * flat <= 3 * square) return launch<Size, 32>(p, stream);
  if (4 * tall <= 3 * square) return launch<Size, 2>(p, stream);
  return launch<Size, 8>(p, stream);
}

}  // namespace

cudaError_t launch_transpose(const TransposeParams& p, cudaStream_t stream) {
  switch (p.element_size) {
    case 1:
      return dispatch_tile<1>(p, stream);
    case 2:
      return dispatch_tile<2>(p, stream);
    case 4:
      return dispatch_tile<4>(p, stream);
    case 8:
      return dispatch_tile<8>(p, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace cuvil
