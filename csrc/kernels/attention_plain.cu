#include "device/attention_mask.cuh"
#include "device/reduce.cuh"
#include "device/tensor_core.cuh"
#include "kernels/attention_plain.cuh"

namespace cuvil {
namespace {

using namespace device;

// A block of 16 x Ty threads owns Bm queries. Thread (x, y) holds, of queries 4y .. 4y + 3, the scores of keys
// x, x + 16, ... of a tile, and a strided sixteenth of the output columns: 4 rows reuse each value fetched from shared
// memory. The 16 threads of one y are half a warp, so a query's maximum and sum need no shared memory.
template <typename T_, int D_, int Ty_, bool Async_>
struct PlainTile {
  using T = T_;
  static constexpr int D = D_;  // head sizes rounded up; the rest is zeros
  static constexpr int Ty = Ty_;
  static constexpr bool Async = Async_;  // operands are fp32 in 16-byte aligned rows: copied without registers
  static constexpr int R = 4, Bm = R * Ty, Bn = D > 128 ? 32 : 64;
  static constexpr int kThreads = 16 * Ty;
  static constexpr int kCols = Bn / 16;
  static constexpr int kWide = D / 16 < 4 ? D / 16 : 4;  // neighbouring output columns of a thread
  static constexpr int kGroups = D / (16 * kWide);
  static constexpr int kRow = D + 4;     // K's row stride: 8 threads' 16-byte reads fall in different banks
  static constexpr int kProbs = Bn + 4;  // P's: the two halves of a warp write to different banks
  static constexpr size_t kSharedBytes = sizeof(float) * (Bm * D + Bn * kRow + Bn * D + Bm * kProbs);
};

// Rows [start, start + Rows) of a [limit, width] operand as floats in shared memory; what lies outside is zero.
template <typename Tl, int Rows>
__device__ __forceinline__ void load_rows(float* shared, int shared_row, const typename Tl::T* src, int64_t stride,
                                          int start, int limit, int width) {
  constexpr int kStep = Tl::Async ? 4 : 1;
  constexpr int kChunks = Tl::D / kStep;
  for (int i = threadIdx.x; i < Rows * kChunks; i += Tl::kThreads) {
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

template <typename Tl>
__global__ void __launch_bounds__(Tl::kThreads) attention_plain(const AttentionParams p) {
  using T = typename Tl::T;
  constexpr int R = Tl::R, D = Tl::D, Bn = Tl::Bn, kCols = Tl::kCols, kWide = Tl::kWide, kGroups = Tl::kGroups;
  extern __shared__ __align__(16) float shared_floats[];
  float* queries = shared_floats;
  float* keys = queries + Tl::Bm * D;
  float* values = keys + Bn * Tl::kRow;
  float* probs = values + Bn * D;

  const int row_blocks = (p.s + Tl::Bm - 1) / Tl::Bm;
  const int block_row = blockIdx.x % row_blocks * Tl::Bm;
  const int head = blockIdx.x / row_blocks % p.heads;
  const int64_t batch = blockIdx.x / row_blocks / p.heads;
  const int kv_head = head / (p.heads / p.kv_heads);
  const int x = threadIdx.x % 16, first = threadIdx.x / 16 * R;  // this thread's first query within the block

  const T* query = static_cast<const T*>(p.q) + batch * p.q_strides.batch + head * p.q_strides.head;
  const T* key = static_cast<const T*>(p.k) + batch * p.k_strides.batch + kv_head * p.k_strides.head;
  const T* value = static_cast<const T*>(p.v) + batch * p.v_strides.batch + kv_head * p.v_strides.head;
  const int64_t mask_base = batch * p.mask_strides[0] + head * p.mask_strides[1];
  const int end = p.causal ? min(p.t, block_row + Tl::Bm) : p.t;  // keys that some query of this block sees

  load_rows<Tl, Tl::Bm>(queries, D, query, p.q_strides.row, block_row, p.s, p.head_size);
  load_rows<Tl, Bn>(keys, Tl::kRow, key, p.k_strides.row, 0, p.t, p.head_size);
  commit_copies();
  load_rows<Tl, Bn>(values, D, value, p.v_strides.row, 0, p.t, p.v_head_size);
  commit_copies();

  float out[R][kGroups][kWide] = {};
  float top[R], sum[R] = {};  // sum is this thread's keys only
#pragma unroll
  for (int r = 0; r < R; ++r) top[r] = -INFINITY;

  for (int start = 0; start < end; start += Bn) {
    const bool more = start + Bn < end;
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
    if (more) load_rows<Tl, Bn>(keys, Tl::kRow, key, p.k_strides.row, start + Bn, p.t, p.head_size);
    commit_copies();

#pragma unroll
    for (int r = 0; r < R; ++r) {
      const int row = block_row + first + r;
      float high = top[r];
#pragma unroll
      for (int c = 0; c < kCols; ++c) {
        const int col = start + x + 16 * c;
        if (col >= p.t || (p.causal && col > row)) {
          s[r][c] = -INFINITY;
        } else {
          float add = 0;
          if (p.mask && row < p.s) {
            add = mask_value<T>(p.mask, p.mask_dtype, mask_base + row * p.mask_strides[2] + col * p.mask_strides[3]);
          }
          s[r][c] = fmaf(s[r][c], p.scale, add);
        }
        high = fmaxf(high, s[r][c]);
      }
#pragma unroll
      for (int lanes = 8; lanes > 0; lanes /= 2) high = fmaxf(high, __shfl_xor_sync(kFullMask, high, lanes));
      // While a row has seen no key, subtract 0 and not -inf: all its exponentials are then 0 and not NaN.
      const float base = high == -INFINITY ? 0.f : high;
      const float keep = expf(top[r] - base);
      top[r] = high;
      sum[r] *= keep;
#pragma unroll
      for (int i = 0; i < kGroups; ++i) {
#pragma unroll
        for (int j = 0; j < kWide; ++j) out[r][i][j] *= keep;
      }
#pragma unroll
      for (int c = 0; c < kCols; ++c) {
        const float e = expf(s[r][c] - base);
        sum[r] += e;
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
        for (int i = 0; i < kGroups; ++i) {
          const Vec<float, kWide> b = load<float, kWide>(values + (j + jj) * D + (i * 16 + x) * kWide);
#pragma unroll
          for (int w = 0; w < kWide; ++w) {
#pragma unroll
            for (int r = 0; r < R; ++r) out[r][i][w] = fmaf(prob[r][jj], b[w], out[r][i][w]);
          }
        }
      }
    }
    __syncthreads();  // the values are used up
    if (more) load_rows<Tl, Bn>(values, D, value, p.v_strides.row, start + Bn, p.t, p.v_head_size);
    commit_copies();
  }

  T* y = static_cast<T*>(p.y) + batch * p.y_strides.batch + head * p.y_strides.head;
#pragma unroll
  for (int r = 0; r < R; ++r) {
    const int row = block_row + first + r;
    const float scale = row_scale(warp_reduce<16>(sum[r], Sum()), p.masked_rows_zero);
    if (row >= p.s) continue;
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
#pragma unroll
      for (int w = 0; w < kWide; ++w) {
        const int col = (i * 16 + x) * kWide + w;
        if (col < p.v_head_size) y[row * p.y_strides.row + col] = from_compute<T>(out[r][i][w] * scale);
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

template <typename T, bool Async>
cudaError_t launch_sized(const AttentionParams& p, cudaStream_t stream) {
  const int width = p.head_size > p.v_head_size ? p.head_size : p.v_head_size;
  if constexpr (Async) {
    // Blocks of 64 queries read the keys half as often as those of 32, once there are enough of them.
    const bool many = int64_t{p.batch} * p.heads * ((p.s + 63) / 64) >= 132;
    if (many && width <= 32) return launch_tile<PlainTile<T, 32, 16, Async>>(p, stream);
    if (many && width <= 64) return launch_tile<PlainTile<T, 64, 16, Async>>(p, stream);
    if (many && width <= 128) return launch_tile<PlainTile<T, 128, 16, Async>>(p, stream);
  }
  if (width <= 32) return launch_tile<PlainTile<T, 32, 8, Async>>(p, stream);
  if (width <= 64) return launch_tile<PlainTile<T, 64, 8, Async>>(p, stream);
  if (width <= 128) return launch_tile<PlainTile<T, 128, 8, Async>>(p, stream);
  return launch_tile<PlainTile<T, 256, 8, Async>>(p, stream);
}

bool rows_aligned(const AttentionParams& p) {
  const auto aligned = [](const void* data, const HeadStrides& s) {
    return reinterpret_cast<uintptr_t>(data) % 16 == 0 && s.batch % 4 == 0 && s.row % 4 == 0 && s.head % 4 == 0;
  };
  return aligned(p.q, p.q_strides) && aligned(p.k, p.k_strides) && aligned(p.v, p.v_strides) && p.head_size % 4 == 0 &&
         p.v_head_size % 4 == 0;
}

}  // namespace

cudaError_t launch_attention_plain(const AttentionParams& p, cudaStream_t stream) {
  switch (p.dtype) {
    case DType::kF32:
      return rows_aligned(p) ? launch_sized<float, true>(p, stream) : launch_sized<float, false>(p, stream);
    case DType::kF16:
      return launch_sized<__half, false>(p, stream);
    case DType::kBF16:
      return launch_sized<__nv_bfloat16, false>(p, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace cuvil
