// What the tensor-core attention kernel (attention_mma.cuh) is made of: its tile sizes, operand loads and running
// results.
#pragma once

#include <type_traits>

#include "device/attention_mask.cuh"
#include "device/reduce.cuh"
#include "device/tensor_core.cuh"
#include "kernels/attention.cuh"

namespace cuvil {
namespace attention_mma {

using namespace device;

// How a kernel meets the mask.
struct NoMask {};   // and a positive scale, which folds into the exponent
struct KeyMask {};  // the same for all queries (padding): a tile's part lies in shared memory
// Anything, of elements E, read from global memory; also no mask with a scale that is not positive, soft-capped scores
// and a sink.
template <typename E>
struct FullMask {};

template <typename Mask>
struct ElementOf {
  using type = float;  // unused
};
template <typename E>
struct ElementOf<FullMask<E>> {
  using type = E;
};

// Shared: the blocks of a cluster may share a head's keys.
template <typename T_, int D_, int Warps_, int Mt_, int Bn_, int Split_, typename Mask_, bool Shared_ = false>
struct Tile {
  using T = T_;
  static constexpr bool Shared = Shared_;
  static constexpr int D = D_;  // head size rounded up; the rest is zeros
  static constexpr int Mt = Mt_, Bn = Bn_, Split = Split_;
  static constexpr bool kNoMask = std::is_same_v<Mask_, NoMask>, kKeyMask = std::is_same_v<Mask_, KeyMask>;
  static constexpr bool kFullMask = !kNoMask && !kKeyMask;
  using MaskElement = typename ElementOf<Mask_>::type;
  static constexpr int kGroup = 32 * Warps_, kThreads = kGroup * Split;
  static constexpr int Bm = 16 * Mt * Warps_;
  static constexpr int kRow = D + 8;  // row stride in shared memory: 8 rows of 16 bytes fall in different banks
  static constexpr int kTileElements = Bn * kRow;

  static constexpr int kResults = Mt * (D / 2 + 4);  // floats of a lane: outputs, maxima and sums
  // K and V of one tile, and its part of the key mask.
  static constexpr int kBufferBytes = 2 * kTileElements * sizeof(T) + (kKeyMask ? Bn * sizeof(float) : 0);
  static_assert(!kKeyMask || kGroup >= Bn, "a thread fetches one key's mask");
  static_assert(Split == 1 || kBufferBytes >= kGroup * kResults * sizeof(float),
                "a group's results take the place of its operands");
  static_assert(!Shared || kBufferBytes * Split >= Bm * (D + 4) * sizeof(float), "a block's too");

  // Two buffers when there is a second step.
  __host__ __device__ static int buffers(const AttentionParams& p) { return p.t > Bn * Split ? 2 : 1; }
  static int shared_bytes(const AttentionParams& p) { return Split * buffers(p) * kBufferBytes; }
};

// Starts copying keys [start, start + Bn) of a [t, D] operand; what lies outside is zero.
template <typename Tl>
__device__ __forceinline__ void load_tile(typename Tl::T* shared, const typename Tl::T* src, int64_t stride, int start,
                                          int t, int head_size, int thread) {
  constexpr int kChunks = Tl::D / 8;
#pragma unroll
  for (int i = 0; i < Tl::Bn * kChunks / Tl::kGroup; ++i) {
    const int c = i * Tl::kGroup + thread;
    const int row = c / kChunks, col = c % kChunks * 8;
    const bool valid = start + row < t && col < head_size;
    copy16_async(shared + row * Tl::kRow + col, valid ? src + (start + row) * stride + col : src, valid);
  }
}

// The elements of a full mask that meet this lane's scores of one tile.
template <typename Tl, typename E>
struct MaskTile {
  Vec<E, 2> v[Tl::Mt][2][Tl::Bn / 8];

  // Places outside the mask hold some other element: their scores are overwritten, or belong to no query.
  __device__ __forceinline__ void read(const AttentionParams& p, int64_t base, int first_row, int start, int lane) {
    const E* mask = static_cast<const E*>(p.mask);
    const bool pairs = p.mask_strides[3] == 1 && (base | p.mask_strides[2]) % 2 == 0 &&
                       reinterpret_cast<uintptr_t>(mask) % (2 * sizeof(E)) == 0 && start + Tl::Bn <= p.t;
    const int64_t stride = p.mask_strides[3];
    const auto row_of = [&](int m, int h) {
      return mask + base + min(first_row + m * 16 + lane / 4 + h * 8, p.s - 1) * p.mask_strides[2];
    };
    const int first = start + lane % 4 * 2;
    if (pairs) {
#pragma unroll
      for (int i = 0; i < Tl::Mt * 2; ++i) {
        const E* row = row_of(i / 2, i % 2) + first;
#pragma unroll
        for (int n = 0; n < Tl::Bn / 8; ++n) v[i / 2][i % 2][n] = load<E, 2>(row + n * 8);
      }
    } else {
#pragma unroll
      for (int i = 0; i < Tl::Mt * 2; ++i) {
        const E* row = row_of(i / 2, i % 2);
#pragma unroll
        for (int n = 0; n < Tl::Bn / 8; ++n) {
#pragma unroll
          for (int j = 0; j < 2; ++j) v[i / 2][i % 2][n][j] = row[min(first + n * 8 + j, p.t - 1) * stride];
        }
      }
    }
  }
};

// What a lane knows of its queries g and g + 8 of each 16: the maximum score, the sum of exponentials over the keys
// seen (this lane's columns only), and the unscaled output.
template <typename Tl>
struct Rows {
  float top[Tl::Mt][2], sum[Tl::Mt][2] = {};
  float out[Tl::Mt][Tl::D / 8][4] = {};

  __device__ __forceinline__ Rows() {
#pragma unroll
    for (int m = 0; m < Tl::Mt; ++m) top[m][0] = top[m][1] = -INFINITY;
  }
  // Makes a row relative to a maximum of at least `high`, and returns what is to be subtracted from scores: the
  // maximum, or 0 and not -inf while no key was seen (all exponentials are then 0 and not NaN).
  __device__ __forceinline__ float raise(int m, int h, float high, float factor) {
    high = fmaxf(high, top[m][h]);
    const float base = high == -INFINITY ? 0.f : high;
    const float keep = fast_exp2((top[m][h] - base) * factor);
    top[m][h] = high;
    sum[m][h] *= keep;
#pragma unroll
    for (int d = 0; d < Tl::D / 8; ++d) {
      out[m][d][2 * h] *= keep;
      out[m][d][2 * h + 1] *= keep;
    }
    return base;
  }
};

// Adds the findings of the other groups to those of group 0. Each lane meets the lanes of the same place in the groups.
template <typename Tl>
__device__ __forceinline__ void merge_groups(Rows<Tl>& rows, unsigned char* shared, int group_bytes, int group,
                                             int thread, float factor) {
  __syncthreads();  // all operands are used up
  const auto slot = [&](int g, int i) -> float& {
    return reinterpret_cast<float*>(shared + g * group_bytes)[i * Tl::kGroup + thread];
  };
  if (group > 0) {
    int i = 0;
#pragma unroll
    for (int m = 0; m < Tl::Mt; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        slot(group, i++) = rows.top[m][h];
        slot(group, i++) = rows.sum[m][h];
#pragma unroll
        for (int d = 0; d < Tl::D / 8; ++d) {
          slot(group, i++) = rows.out[m][d][2 * h];
          slot(group, i++) = rows.out[m][d][2 * h + 1];
        }
      }
    }
  }
  __syncthreads();
  if (group > 0) return;
  for (int other = 1; other < Tl::Split; ++other) {
    int i = 0;
#pragma unroll
    for (int m = 0; m < Tl::Mt; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float top = slot(other, i++);
        const float scale = fast_exp2((top - rows.raise(m, h, top, factor)) * factor);
        rows.sum[m][h] += slot(other, i++) * scale;
#pragma unroll
        for (int d = 0; d < Tl::D / 8; ++d) {
          rows.out[m][d][2 * h] += slot(other, i++) * scale;
          rows.out[m][d][2 * h + 1] += slot(other, i++) * scale;
        }
      }
    }
  }
}

}  // namespace attention_mma
}  // namespace cuvil
