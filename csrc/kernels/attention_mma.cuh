// The tensor-core attention kernel for 16-bit types, instantiated in attention_f16.cu and attention_bf16.cu.
//
// A block owns Bm queries of one head. Its warps form `Split` groups, each of which walks over its own share of the
// keys in tiles of Bn, keeping a running maximum and sum per query (online softmax), so that scores never leave
// registers; what the groups found is merged at the end. Each warp of a group owns 16 * Mt queries.
//
// Of a single query (decoding), the heads that share keys are the rows of a block, and the blocks of a cluster each
// take a stretch of the keys: a long cache is read by the whole card ("Flash-Decoding for long-context inference",
// 2023).
#pragma once

#include "device/launch.cuh"
#include "kernels/attention_mma_parts.cuh"
#include "kernels/attention_range.cuh"
#include "kernels/attention_sharing.cuh"

namespace cuvil {

// Whether the tensor-core kernel takes these parameters: one head size of at most 128, 16-byte aligned rows.
bool attention_mma_takes(const AttentionParams& p);

cudaError_t launch_attention_f16(const AttentionParams& p, cudaStream_t stream);
cudaError_t launch_attention_bf16(const AttentionParams& p, cudaStream_t stream);

namespace attention_mma {

template <typename Tl>
__global__ void __launch_bounds__(Tl::kThreads) attention_kernel(const AttentionParams p) {
  if constexpr (Tl::Shared) wait_for_predecessor();
  using T = typename Tl::T;
  constexpr int Mt = Tl::Mt, Bn = Tl::Bn, D = Tl::D, kRow = Tl::kRow;
  constexpr float kLog2e = 1.4426950408889634f;
  extern __shared__ __align__(16) unsigned char shared[];

  const int row_blocks = (p.s + Tl::Bm - 1) / Tl::Bm;
  const int block_row = blockIdx.x % row_blocks * Tl::Bm;
  const int head = blockIdx.x / row_blocks % p.heads;
  const int64_t batch = blockIdx.x / row_blocks / p.heads;
  const int kv_head = head / (p.heads / p.kv_heads);
  const int group = Tl::Split > 1 ? threadIdx.x / Tl::kGroup : 0, thread = threadIdx.x % Tl::kGroup;
  const int lane = thread % 32, g = lane / 4, q = lane % 4;
  const int warp_row = block_row + thread / 32 * 16 * Mt;

  const T* query = static_cast<const T*>(p.q) + batch * p.q_strides.batch + head * p.q_strides.head;
  const T* key = static_cast<const T*>(p.k) + batch * p.k_strides.batch + kv_head * p.k_strides.head;
  const T* value = static_cast<const T*>(p.v) + batch * p.v_strides.batch + kv_head * p.v_strides.head;
  const int64_t mask_base = batch * p.mask_strides[0] + head * p.mask_strides[1];

  // Keys that some query of this block sees.
  const KeyRange range = key_range(p, batch);
  int begin = range.begin(block_row) / Bn * Bn, end = range.end(min(block_row + Tl::Bm, p.s) - 1);
  if constexpr (Tl::Shared) {
    constexpr int kStep = Bn * Tl::Split;
    const int steps = max(0, end - begin + kStep - 1) / kStep, rank = blockIdx.z, ranks = gridDim.z;
    end = min(end, begin + steps * (rank + 1) / ranks * kStep);
    begin += steps * rank / ranks * kStep;
  }
  const int buffers = Tl::buffers(p), group_bytes = buffers * Tl::kBufferBytes;
  T* keys = reinterpret_cast<T*>(shared + group * group_bytes);
  T* values = keys + buffers * Tl::kTileElements;
  float* key_mask = reinterpret_cast<float*>(values + buffers * Tl::kTileElements);
  const auto load_keys = [&](int buffer, int start) {
    load_tile<Tl>(keys + buffer * Tl::kTileElements, key, p.k_strides.row, start, p.t, p.head_size, thread);
  };
  const auto load_values = [&](int buffer, int start) {
    load_tile<Tl>(values + buffer * Tl::kTileElements, value, p.v_strides.row, start, p.t, p.head_size, thread);
  };
  const auto read_key_mask = [&](int start) {  // threads 0 .. Bn - 1 fetch one key's mask each
    const int j = start + thread;
    return thread < Bn && j < p.t ? mask_value<T>(p.mask, p.mask_dtype, mask_base + j * p.mask_strides[3]) : 0.f;
  };

  load_keys(0, begin + group * Bn);
  commit_copies();
  load_values(0, begin + group * Bn);
  commit_copies();
  if constexpr (Tl::kKeyMask) {
    if (thread < Bn) key_mask[thread] = read_key_mask(begin + group * Bn);
  }

  uint32_t a[Mt][D / 16][4];  // this warp's queries
#pragma unroll
  for (int m = 0; m < Mt; ++m) {
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = warp_row + m * 16 + g + i % 2 * 8, col = k * 16 + 2 * q + i / 2 * 8;
        a[m][k][i] = row < p.s && col < p.head_size
                         ? *reinterpret_cast<const uint32_t*>(query + row * p.q_strides.row + col)
                         : 0;
      }
    }
  }

  // exp(x - maximum) is 2^(x * factor - maximum * factor).
  const float factor = Tl::kNoMask ? p.scale * kLog2e : kLog2e;
  Rows<Tl> rows;
  // All groups take the same number of steps, so that they meet at the barriers; keys past the end count for nothing.
  for (int step = 0; begin + step * Bn * Tl::Split < end; ++step) {
    const int start = begin + (step * Tl::Split + group) * Bn, next = start + Bn * Tl::Split, buffer = step % 2;
    const T* tile_keys = keys + buffer * Tl::kTileElements;
    const T* tile_values = values + buffer * Tl::kTileElements;
    const bool more = begin + (step + 1) * Bn * Tl::Split < end;
    [[maybe_unused]] float next_mask = 0;
    MaskTile<Tl, typename Tl::MaskElement> mask;
    if constexpr (Tl::kFullMask) {
      if (p.mask) mask.read(p, mask_base, warp_row, start, lane);
    }

    wait_copies<1>();  // these keys are here; the values may still be on their way
    __syncthreads();
    // All warps are past the previous tile's scores: its key buffer and mask are free.
    if (more) {
      load_keys(buffer ^ 1, next);
      if constexpr (Tl::kKeyMask) next_mask = read_key_mask(next);
    }
    commit_copies();

    float s[Mt][Bn / 8][4] = {};
#pragma unroll
    for (int n = 0; n < Bn / 16; ++n) {
#pragma unroll
      for (int k = 0; k < D / 16; ++k) {
        uint32_t b[4];
        load_matrices(b, tile_keys + (n * 16 + lane % 8 + lane / 16 * 8) * kRow + k * 16 + lane / 8 % 2 * 8);
#pragma unroll
        for (int m = 0; m < Mt; ++m) {
          mma_16x8x16<T>(s[m][2 * n], a[m][k], b[0], b[1]);
          mma_16x8x16<T>(s[m][2 * n + 1], a[m][k], b[2], b[3]);
        }
      }
    }

    if constexpr (Tl::kKeyMask) {
#pragma unroll
      for (int n = 0; n < Bn / 8; ++n) {
        const float2 add = *reinterpret_cast<const float2*>(key_mask + buffer * Bn + n * 8 + 2 * q);
#pragma unroll
        for (int m = 0; m < Mt; ++m) {
#pragma unroll
          for (int i = 0; i < 4; ++i) s[m][n][i] = fmaf(s[m][n][i], p.scale, i % 2 ? add.y : add.x);
        }
      }
      if (more && thread < Bn) key_mask[(buffer ^ 1) * Bn + thread] = next_mask;
    } else if constexpr (Tl::kFullMask) {
#pragma unroll
      for (int m = 0; m < Mt; ++m) {
#pragma unroll
        for (int n = 0; n < Bn / 8; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float add = p.mask ? mask_addend(mask.v[m][i / 2][n][i % 2]) : 0.f;
            s[m][n][i] =
                p.softcap > 0 ? soft_capped(s[m][n][i] * p.scale, p.softcap) + add : fmaf(s[m][n][i], p.scale, add);
          }
        }
      }
    }
    // Keys that not all queries of this warp see.
    if (start + Bn > range.end(warp_row) || start < range.begin(warp_row + 16 * Mt - 1)) {
#pragma unroll
      for (int m = 0; m < Mt; ++m) {
#pragma unroll
        for (int n = 0; n < Bn / 8; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int row = warp_row + m * 16 + g + i / 2 * 8, col = start + n * 8 + 2 * q + i % 2;
            if (col < range.begin(row) || col >= range.end(row)) s[m][n][i] = -INFINITY;
          }
        }
      }
    }

    // With a mask the difference comes first: a large negative finite mask must not become -inf by the factor.
#pragma unroll
    for (int m = 0; m < Mt; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float high = -INFINITY;
#pragma unroll
        for (int n = 0; n < Bn / 8; ++n) high = fmaxf(high, fmaxf(s[m][n][2 * h], s[m][n][2 * h + 1]));
        high = fmaxf(high, __shfl_xor_sync(kFullMask, high, 1));
        high = fmaxf(high, __shfl_xor_sync(kFullMask, high, 2));
        const float base = rows.raise(m, h, high, factor), scaled_base = base * factor;
#pragma unroll
        for (int n = 0; n < Bn / 8; ++n) {
#pragma unroll
          for (int i = 2 * h; i < 2 * h + 2; ++i) {
            const float e = Tl::kNoMask ? fmaf(s[m][n][i], factor, -scaled_base) : (s[m][n][i] - base) * factor;
            s[m][n][i] = fast_exp2(e);
            rows.sum[m][h] += s[m][n][i];
          }
        }
      }
    }

    wait_copies<1>();  // these values are here; the next keys may still be on their way
    __syncthreads();
    // All warps are past the previous tile's product: its value buffer is free.
    if (more) load_values(buffer ^ 1, next);
    commit_copies();

#pragma unroll
    for (int n = 0; n < Bn / 16; ++n) {
      uint32_t prob[Mt][4];
#pragma unroll
      for (int m = 0; m < Mt; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* c = &s[m][2 * n + i / 2][i % 2 * 2];
          prob[m][i] = pack_pair<T>(c[0], c[1]);
        }
      }
#pragma unroll
      for (int d = 0; d < D / 16; ++d) {
        uint32_t b[4];
        load_matrices_transposed(b, tile_values + (n * 16 + lane % 16) * kRow + d * 16 + lane / 16 * 8);
#pragma unroll
        for (int m = 0; m < Mt; ++m) {
          mma_16x8x16<T>(rows.out[m][2 * d], prob[m], b[0], b[1]);
          mma_16x8x16<T>(rows.out[m][2 * d + 1], prob[m], b[2], b[3]);
        }
      }
    }
  }

  wait_copies<0>();  // of blocks without keys
  if constexpr (Tl::Split > 1) merge_groups(rows, shared, group_bytes, group, thread, factor);
  T* y = static_cast<T*>(p.y) + batch * p.y_strides.batch + head * p.y_strides.head;
  if constexpr (Tl::Shared) return merge_blocks(p, rows, shared, y, group, thread, block_row, head, factor);
  if (group > 0) return;
#pragma unroll
  for (int m = 0; m < Mt; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = warp_row + m * 16 + g + h * 8;
      rows.sum[m][h] = warp_reduce<4>(rows.sum[m][h], Sum());
      if constexpr (Tl::kFullMask) {
        if (p.sink) {
          const float sink = sink_of<T>(p, p.one_place ? head * p.s + row : head);
          const float base = rows.raise(m, h, sink, factor);
          rows.sum[m][h] += fast_exp2((sink - base) * factor);
        }
      }
      const float scale = row_scale(rows.sum[m][h], p.masked_rows_zero);
      if (row >= p.s) continue;
#pragma unroll
      for (int d = 0; d < D / 8; ++d) {
        const int col = d * 8 + 2 * q;
        if (col >= p.head_size) continue;
        *reinterpret_cast<uint32_t*>(y + row * p.y_strides.row + col) =
            pack_pair<T>(rows.out[m][d][2 * h] * scale, rows.out[m][d][2 * h + 1] * scale);
      }
    }
  }
}

// `ranks`: blocks that share a head's keys.
template <typename Tl>
cudaError_t launch_tile(const AttentionParams& p, cudaStream_t stream, int ranks = 1) {
  const int bytes = Tl::shared_bytes(p);
  if (bytes > 48 * 1024) {
    const cudaError_t code =
        cudaFuncSetAttribute(attention_kernel<Tl>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (code != cudaSuccess) return code;
  }
  const int64_t blocks = int64_t{p.batch} * p.heads * ((p.s + Tl::Bm - 1) / Tl::Bm);
  if (blocks > INT32_MAX) return cudaErrorInvalidValue;
  if constexpr (Tl::Shared) {
    const dim3 grid(static_cast<unsigned>(blocks), 1, static_cast<unsigned>(ranks));
    launch_early_cluster(attention_kernel<Tl>, grid, Tl::kThreads, static_cast<size_t>(bytes), grid.z, stream, p);
  } else {
    attention_kernel<Tl><<<static_cast<unsigned>(blocks), Tl::kThreads, static_cast<size_t>(bytes), stream>>>(p);
  }
  return cudaGetLastError();
}

// Measured on an H200. Many queries in all: 32 a warp, so that each operand fetched from shared memory serves two
// products. Few: small blocks spread over the card, whose warps share the keys.
template <typename T, int D, typename Mask>
cudaError_t launch_sized(const AttentionParams& p, cudaStream_t stream) {
  const auto blocks_of = [&](int rows) { return int64_t{p.batch} * p.heads * ((p.s + rows - 1) / rows); };
  if (p.one_place) {  // few rows: all warps share the keys
    // Small buffers, so that clusters find room: those of large ones had to wait for each other.
    using Few = Tile<T, D, 1, 1, 16, 4, Mask, true>;
    const int ranks = p.clusters ? sharing_blocks(p, Few::Bm, 2 * Few::Bn * Few::Split) : 1;
    if (ranks > 1) return launch_tile<Few>(p, stream, ranks);
    return launch_tile<Tile<T, D, 1, 1, 32, 4, Mask>>(p, stream);
  }
  // A full mask's elements need the registers that these tiles give to more queries.
  constexpr bool kFull = !std::is_same_v<Mask, NoMask> && !std::is_same_v<Mask, KeyMask>;
  if constexpr (D <= 64 && !kFull) {
    if (blocks_of(128) >= 256) return launch_tile<Tile<T, D, 4, 2, 64, 1, Mask>>(p, stream);
  }
  if constexpr (D <= 64) {
    if (blocks_of(64) < 132 && p.t > 64) return launch_tile<Tile<T, D, 2, 1, 64, 2, Mask>>(p, stream);
  } else {
    if (blocks_of(64) >= 264) return launch_tile<Tile<T, D, 4, 1, 32, 1, Mask>>(p, stream);
  }
  return launch_tile<Tile<T, D, 4, 1, 64, 1, Mask>>(p, stream);
}

template <typename T, typename Mask>
cudaError_t launch_masked(const AttentionParams& p, cudaStream_t stream) {
  if (p.head_size <= 32) return launch_sized<T, 32, Mask>(p, stream);
  if (p.head_size <= 64) return launch_sized<T, 64, Mask>(p, stream);
  if (p.head_size <= 96) return launch_sized<T, 96, Mask>(p, stream);
  return launch_sized<T, 128, Mask>(p, stream);
}

template <typename T>
cudaError_t launch(const AttentionParams& given, cudaStream_t stream) {
  const AttentionParams p = given.s == 1 ? folded(given) : given;
  const bool plain = p.softcap <= 0 && !p.sink;
  if (!p.mask && p.scale > 0 && plain) return launch_masked<T, NoMask>(p, stream);
  if (p.mask && p.mask_strides[2] == 0 && plain) return launch_masked<T, KeyMask>(p, stream);
  if (p.mask && p.mask_dtype == DType::kBool) return launch_masked<T, FullMask<bool>>(p, stream);
  if (p.mask && p.mask_dtype == DType::kF32) return launch_masked<T, FullMask<float>>(p, stream);
  return launch_masked<T, FullMask<T>>(p, stream);
}

}  // namespace attention_mma
}  // namespace cuvil
