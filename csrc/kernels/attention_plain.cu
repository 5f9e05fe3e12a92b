#include "device/attention_mask.cuh"
#include "device/reduce.cuh"
#include "device/tensor_core.cuh"
#include "kernels/attention_plain.cuh"
#include "kernels/attention_range.cuh"

namespace cuvil {
namespace {

using namespace device;

// A block owns Bm = R * Ty queries of one head. Its threads form `Split` groups of 16 x Ty, each of which walks over
// its own share of the keys in tiles of Bn; what the groups found is merged at the end. Thread (x, y) of a group holds,
// of queries R * y .. R * y + R - 1, the scores of keys x, x + 16, ... of a tile, and a strided sixteenth of the output
// columns: R rows reuse each value fetched from shared memory. The 16 threads of one y are half a warp, so a query's
// maximum and sum need no shared memory.
template <typename T_, int D_, int Ty_, int R_, int Bn_, int Split_, bool Async_>
struct PlainTile {
  using T = T_;
  static constexpr int D = D_;  // head sizes rounded up; the rest is zeros
  static constexpr int R = R_, Bn = Bn_, Split = Split_, Bm = R * Ty_;
  static constexpr bool Async = Async_;  // operands are fp32 in 16-byte aligned rows: copied without registers
  static constexpr int kGroup = 16 * Ty_, kThreads = kGroup * Split;
  static constexpr int kCols = Bn / 16;
  static constexpr int kWide = D / 16 < 4 ? D / 16 : 4;  // neighbouring output columns of a thread
  static constexpr int kParts = D / (16 * kWide);
  static constexpr int kRow = D + 4;     // K's row stride: 8 threads' 16-byte reads fall in different banks
  static constexpr int kProbs = Bn + 4;  // P's: so that the two halves of a warp write to different banks
  // Floats: Q once; K, V and P for each group.
  static constexpr int kQueries = Bm * D, kKeys = Bn * kRow, kValues = Bn * D, kShare = kKeys + kValues + Bm * kProbs;
  static constexpr size_t kSharedBytes = sizeof(float) * (kQueries + Split * kShare);
  static_assert(kSharedBytes <= 99 * 1024, "the smaller architectures give a block no more");
  static_assert(Split == 1 || Bm * (D + 2) <= kShare, "a group's result takes the place of its operands");
};

// Rows [start, start + Rows) of a [limit, width] operand as floats in shared memory, by `Threads` threads of which this
// is number `thread`; what lies outside is zero.
template <typename Tl, int Rows, int Threads>
__device__ __forceinline__ void load_rows(float* shared, int shared_row, const typename Tl::T* src, int64_t stride,
                                          int start, int limit, int width, int thread) {
  constexpr int kStep = Tl::Async ? 4 : 1;
  constexpr int kChunks = Tl::D / kStep;
  for (int i = thread; i < Rows * kChunks; i += Threads) {
    const int row = i / kChunks, col = i % kChunks * kStep;
    const bool valid = start + row < limit && col < width;
    const typename Tl::T* from = valid ? src + (start + row) * stride + col : src;
    float* to = shared + row * shared_row + col;
    if constexpr (Tl::Async) {
      copy16_async(to, from, valid);
    } else {
      *to = valid ? to_compute(*from) : 0.f;
    }
  }
}

// What a thread knows of its R queries: the maximum and the sum of exponentials over the keys seen, and the unscaled
// output.
template <typename Tl>
struct Rows {
  float top[Tl::R], sum[Tl::R] = {};
  float out[Tl::R][Tl::kParts][Tl::kWide] = {};

  __device__ __forceinline__ Rows() {
#pragma unroll
    for (int r = 0; r < Tl::R; ++r) top[r] = -INFINITY;
  }
  // Makes row r relative to a maximum of at least `high`, and returns what is to be subtracted from scores: the
  // maximum, or 0 and not -inf while no key was seen (all exponentials are then 0 and not NaN).
  __device__ __forceinline__ float raise(int r, float high) {
    high = fmaxf(high, top[r]);
    const float base = high == -INFINITY ? 0.f : high;
    const float keep = expf(top[r] - base);
    top[r] = high;
    sum[r] *= keep;
#pragma unroll
    for (int i = 0; i < Tl::kParts; ++i) {
#pragma unroll
      for (int w = 0; w < Tl::kWide; ++w) out[r][i][w] *= keep;
    }
    return base;
  }
};

// Adds the findings of the other groups to those of group 0. `share` is a group's part of the shared memory.
template <typename Tl>
__device__ __forceinline__ void merge_groups(Rows<Tl>& rows, float* shares, int group, int x, int first) {
  constexpr int D = Tl::D;
  __syncthreads();  // all operands are used up
  if (group > 0) {
    float* share = shares + group * Tl::kShare;
#pragma unroll
    for (int r = 0; r < Tl::R; ++r) {
      float* row = share + (first + r) * (D + 2);
#pragma unroll
      for (int i = 0; i < Tl::kParts; ++i) {
#pragma unroll
        for (int w = 0; w < Tl::kWide; ++w) row[(i * 16 + x) * Tl::kWide + w] = rows.out[r][i][w];
      }
      if (x == 0) {
        row[D] = rows.top[r];
        row[D + 1] = rows.sum[r];
      }
    }
  }
  __syncthreads();
  if (group > 0) return;
  for (int other = 1; other < Tl::Split; ++other) {
    const float* share = shares + other * Tl::kShare;
#pragma unroll
    for (int r = 0; r < Tl::R; ++r) {
      const float* row = share + (first + r) * (D + 2);
      const float scale = expf(row[D] - rows.raise(r, row[D]));
      rows.sum[r] += row[D + 1] * scale;
#pragma unroll
      for (int i = 0; i < Tl::kParts; ++i) {
#pragma unroll
        for (int w = 0; w < Tl::kWide; ++w) rows.out[r][i][w] += row[(i * 16 + x) * Tl::kWide + w] * scale;
      }
    }
  }
}

template <typename Tl>
__global__ void __launch_bounds__(Tl::kThreads) attention_plain(const AttentionParams p) {
  using T = typename Tl::T;
  constexpr int R = Tl::R, D = Tl::D, Bn = Tl::Bn, kCols = Tl::kCols, kWide = Tl::kWide, kStep = Bn * Tl::Split;
  extern __shared__ __align__(16) float shared_floats[];
  const int group = threadIdx.x / Tl::kGroup, thread = threadIdx.x % Tl::kGroup;
  float* queries = shared_floats;
  float* shares = queries + Tl::kQueries;
  float* keys = shares + group * Tl::kShare;
  float* values = keys + Tl::kKeys;
  float* probs = values + Tl::kValues;

  const int row_blocks = (p.s + Tl::Bm - 1) / Tl::Bm;
  const int block_row = blockIdx.x % row_blocks * Tl::Bm;
  const int head = blockIdx.x / row_blocks % p.heads;
  const int64_t batch = blockIdx.x / row_blocks / p.heads;
  const int kv_head = head / (p.heads / p.kv_heads);
  const int x = thread % 16, first = thread / 16 * R;  // this thread's first query within the block

  const T* query = static_cast<const T*>(p.q) + batch * p.q_strides.batch + head * p.q_strides.head;
  const T* key = static_cast<const T*>(p.k) + batch * p.k_strides.batch + kv_head * p.k_strides.head;
  const T* value = static_cast<const T*>(p.v) + batch * p.v_strides.batch + kv_head * p.v_strides.head;
  const int64_t mask_base = batch * p.mask_strides[0] + head * p.mask_strides[1];
  // Keys that some query of this block sees.
  const KeyRange range = key_range(p, batch);
  const int begin = range.begin(block_row) / Bn * Bn, end = range.end(min(block_row + Tl::Bm, p.s) - 1);
  const auto load_keys = [&](int start) {
    load_rows<Tl, Bn, Tl::kGroup>(keys, Tl::kRow, key, p.k_strides.row, start, p.t, p.head_size, thread);
  };
  const auto load_values = [&](int start) {
    load_rows<Tl, Bn, Tl::kGroup>(values, D, value, p.v_strides.row, start, p.t, p.v_head_size, thread);
  };

  load_rows<Tl, Tl::Bm, Tl::kThreads>(queries, D, query, p.q_strides.row, block_row, p.s, p.head_size, threadIdx.x);
  load_keys(begin + group * Bn);
  commit_copies();
  load_values(begin + group * Bn);
  commit_copies();

  Rows<Tl> rows;
  // All groups take the same number of steps, so that they meet at the barriers; keys past the end count for nothing.
  for (int step = begin; step < end; step += kStep) {
    const int start = step + group * Bn;
    const bool more = step + kStep < end;
    wait_copies<1>();  // the keys are here; the values may still be on their way
    __syncthreads();
    float s[R][kCols] = {};
#pragma unroll 4
    for (int k = 0; k < D; k += 4) {
      float4 a[R];
#pragma unroll
      for (int r = 0; r < R; ++r) a[r] = *reinterpret_cast<const float4*>(queries + (first + r) * D + k);
#pragma unroll
      for (int c = 0; c < kCols; ++c) {
        const float4 b = *reinterpret_cast<const float4*>(keys + (x + 16 * c) * Tl::kRow + k);
#pragma unroll
        for (int r = 0; r < R; ++r) {
          s[r][c] = fmaf(a[r].x, b.x, s[r][c]);
          s[r][c] = fmaf(a[r].y, b.y, s[r][c]);
          s[r][c] = fmaf(a[r].z, b.z, s[r][c]);
          s[r][c] = fmaf(a[r].w, b.w, s[r][c]);
        }
      }
    }
    __syncthreads();  // the keys are used up
    if (more) load_keys(start + kStep);
    commit_copies();

#pragma unroll
    for (int r = 0; r < R; ++r) {
      const int row = block_row + first + r, row_begin = range.begin(row), row_end = range.end(row);
      float high = -INFINITY;
#pragma unroll
      for (int c = 0; c < kCols; ++c) {
        const int col = start + x + 16 * c;
        if (col < row_begin || col >= row_end) {
          s[r][c] = -INFINITY;
        } else {
          float add = 0;
          if (p.mask && row < p.s) {
            add = mask_value<T>(p.mask, p.mask_dtype, mask_base + row * p.mask_strides[2] + col * p.mask_strides[3]);
          }
          s[r][c] = p.softcap > 0 ? soft_capped(s[r][c] * p.scale, p.softcap) + add : fmaf(s[r][c], p.scale, add);
        }
        high = fmaxf(high, s[r][c]);
      }
#pragma unroll
      for (int lanes = 8; lanes > 0; lanes /= 2) high = fmaxf(high, __shfl_xor_sync(kFullMask, high, lanes));
      const float base = rows.raise(r, high);
#pragma unroll
      for (int c = 0; c < kCols; ++c) {
        const float e = expf(s[r][c] - base);
        rows.sum[r] += e;
        probs[(first + r) * Tl::kProbs + x + 16 * c] = e;
      }
    }

    wait_copies<1>();  // the values are here; the next keys may still be on their way
    __syncthreads();
#pragma unroll 2
    for (int j = 0; j < Bn; j += 4) {
      float prob[R][4];
#pragma unroll
      for (int r = 0; r < R; ++r) {
        *reinterpret_cast<float4*>(prob[r]) = *reinterpret_cast<const float4*>(probs + (first + r) * Tl::kProbs + j);
      }
#pragma unroll
      for (int jj = 0; jj < 4; ++jj) {
#pragma unroll
        for (int i = 0; i < Tl::kParts; ++i) {
          const Vec<float, kWide> b = load<float, kWide>(values + (j + jj) * D + (i * 16 + x) * kWide);
#pragma unroll
          for (int w = 0; w < kWide; ++w) {
#pragma unroll
            for (int r = 0; r < R; ++r) rows.out[r][i][w] = fmaf(prob[r][jj], b[w], rows.out[r][i][w]);
          }
        }
      }
    }
    __syncthreads();  // the values are used up
    if (more) load_values(start + kStep);
    commit_copies();
  }

  wait_copies<0>();  // of blocks without keys
#pragma unroll
  for (int r = 0; r < R; ++r) rows.sum[r] = warp_reduce<16>(rows.sum[r], Sum());
  if constexpr (Tl::Split > 1) merge_groups(rows, shares, group, x, first);
  if (group > 0) return;
  T* y = static_cast<T*>(p.y) + batch * p.y_strides.batch + head * p.y_strides.head;
#pragma unroll
  for (int r = 0; r < R; ++r) {
    const int row = block_row + first + r;
    if (row >= p.s) continue;
    if (p.sink) {
      const float sink = sink_of<T>(p, head);
      const float base = rows.raise(r, sink);
      rows.sum[r] += expf(sink - base);
    }
    const float scale = row_scale(rows.sum[r], p.masked_rows_zero);
#pragma unroll
    for (int i = 0; i < Tl::kParts; ++i) {
#pragma unroll
      for (int w = 0; w < kWide; ++w) {
        const int col = (i * 16 + x) * kWide + w;
        if (col < p.v_head_size) y[row * p.y_strides.row + col] = from_compute<T>(rows.out[r][i][w] * scale);
      }
    }
  }
}

template <typename Tl>
cudaError_t launch_tile(const AttentionParams& p, cudaStream_t stream) {
  if (Tl::kSharedBytes > 48 * 1024) {
    const cudaError_t code = cudaFuncSetAttribute(attention_plain<Tl>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                  static_cast<int>(Tl::kSharedBytes));
    if (code != cudaSuccess) return code;
  }
  const int64_t blocks = int64_t{p.batch} * p.heads * ((p.s + Tl::Bm - 1) / Tl::Bm);
  if (blocks > INT32_MAX) return cudaErrorInvalidValue;
  attention_plain<Tl><<<static_cast<unsigned>(blocks), Tl::kThreads, Tl::kSharedBytes, stream>>>(p);
  return cudaGetLastError();
}

// Measured on an H200. Many queries in all: 64 a block, so that operands are fetched least often. Few: blocks of 16 or
// 32 spread over the card, and groups share the keys. Shared memory stays below the 99 KB of the smaller architectures.
template <typename T, int D>
cudaError_t launch_aligned(const AttentionParams& p, cudaStream_t stream) {
  const auto blocks_of = [&](int rows) { return int64_t{p.batch} * p.heads * ((p.s + rows - 1) / rows); };
  if (blocks_of(64) >= 132) {
    using Large = std::conditional_t<(D > 64), PlainTile<T, D, 8, 8, 32, 1, true>, PlainTile<T, D, 16, 4, 64, 1, true>>;
    return launch_tile<Large>(p, stream);
  }
  if (p.t <= 32) return launch_tile<PlainTile<T, D, 8, 4, 32, 1, true>>(p, stream);
  if (blocks_of(16) > 264) return launch_tile<PlainTile<T, D, 8, 4, 32, 2, true>>(p, stream);
  return launch_tile<PlainTile<T, D, 4, 4, 32, (D > 64 ? 2 : 4), true>>(p, stream);
}

template <typename T>
cudaError_t launch_unaligned(const AttentionParams& p, int width, cudaStream_t stream) {
  if (width <= 32) return launch_tile<PlainTile<T, 32, 8, 4, 32, 2, false>>(p, stream);
  if (width <= 64) return launch_tile<PlainTile<T, 64, 8, 4, 32, 2, false>>(p, stream);
  if (width <= 128) return launch_tile<PlainTile<T, 128, 8, 4, 32, 1, false>>(p, stream);
  return launch_tile<PlainTile<T, 256, 8, 4, 16, 1, false>>(p, stream);
}

cudaError_t launch_f32(const AttentionParams& p, int width, cudaStream_t stream) {
  const auto aligned = [](const void* data, const HeadStrides& s) {
    return reinterpret_cast<uintptr_t>(data) % 16 == 0 && s.batch % 4 == 0 && s.row % 4 == 0 && s.head % 4 == 0;
  };
  if (!aligned(p.q, p.q_strides) || !aligned(p.k, p.k_strides) || !aligned(p.v, p.v_strides) || p.head_size % 4 != 0 ||
      p.v_head_size % 4 != 0) {
    return launch_unaligned<float>(p, width, stream);
  }
  if (width <= 32) return launch_aligned<float, 32>(p, stream);
  if (width <= 64) return launch_aligned<float, 64>(p, stream);
  if (width <= 128) return launch_aligned<float, 128>(p, stream);
  return launch_tile<PlainTile<float, 256, 8, 4, 16, 1, true>>(p, stream);
}

}  // namespace

cudaError_t launch_attention_plain(const AttentionParams& p, cudaStream_t stream) {
  const int width = p.head_size > p.v_head_size ? p.head_size : p.v_head_size;
  switch (p.dtype) {
    case DType::kF32:
      return launch_f32(p, width, stream);
    case DType::kF16:
      return launch_unaligned<__half>(p, width, stream);
    case DType::kBF16:
      return launch_unaligned<__nv_bfloat16>(p, width, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace cuvil
