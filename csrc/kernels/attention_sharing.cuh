// How the tensor-core attention kernel (attention_mma.cuh) serves a single query: which blocks share its keys, and how
// their findings meet.
#pragma once

#include <cooperative_groups.h>

#include "kernels/attention_mma_parts.cuh"
#include "kernels/attention_range.cuh"

namespace cuvil {
namespace attention_mma {

using namespace device;

// Merges the findings of a cluster's blocks and writes them, each block its share of the elements. Called by all
// threads, with the group's findings in group 0.
template <typename Tl>
__device__ __forceinline__ void merge_blocks(const AttentionParams& p, Rows<Tl>& rows, unsigned char* shared,
                                             typename Tl::T* y, int group, int thread, int block_row, int head,
                                             float factor) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  using T = typename Tl::T;
  constexpr int D = Tl::D, kPitch = D + 4;  // of a row: its outputs, maximum and sum
  namespace cg = cooperative_groups;
  const cg::cluster_group cluster = cg::this_cluster();
  float* const mine = reinterpret_cast<float*>(shared);
  const int lane = thread % 32, g = lane / 4, q = lane % 4;
  __syncthreads();  // the groups have been merged: their place is free
  if (group == 0) {
#pragma unroll
    for (int m = 0; m < Tl::Mt; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float* const row = mine + ((thread / 32 * Tl::Mt + m) * 16 + g + h * 8) * kPitch;
        const float sum = warp_reduce<4>(rows.sum[m][h], Sum());
        if (q == 0) row[D] = rows.top[m][h], row[D + 1] = sum;
#pragma unroll
        for (int d = 0; d < D / 8; ++d)
          *reinterpret_cast<float2*>(row + d * 8 + 2 * q) =
              make_float2(rows.out[m][d][2 * h], rows.out[m][d][2 * h + 1]);
      }
    }
  }
  cluster.sync();
  const unsigned ranks = cluster.num_blocks();
  for (int i = static_cast<int>(cluster.block_rank()) * Tl::kThreads + static_cast<int>(threadIdx.x);
       i < Tl::Bm * D / 2; i += static_cast<int>(ranks) * Tl::kThreads) {
    const int local = i / (D / 2), row = block_row + local, col = i % (D / 2) * 2;
    if (row >= p.s || col >= p.head_size) continue;
    const auto of = [&](unsigned rank) { return cluster.map_shared_rank(mine, rank) + local * kPitch; };
    const bool sink = Tl::kFullMask && p.sink;
    const float sunk = sink ? sink_of<T>(p, p.one_place ? head * p.s + row : head) : -INFINITY;
    float top = sunk;
    for (unsigned rank = 0; rank < ranks; ++rank) top = fmaxf(top, of(rank)[D]);
    const float base = top == -INFINITY ? 0.f : top;
    float sum = sink ? fast_exp2((sunk - base) * factor) : 0.f;
    float2 out = make_float2(0, 0);
    for (unsigned rank = 0; rank < ranks; ++rank) {
      const float* const part = of(rank);
      const float scale = fast_exp2((part[D] - base) * factor);
      const float2 v = *reinterpret_cast<const float2*>(part + col);
      sum += part[D + 1] * scale, out.x += v.x * scale, out.y += v.y * scale;
    }
    const float scale = row_scale(sum, p.masked_rows_zero);
    *reinterpret_cast<uint32_t*>(y + row * p.y_strides.row + col) = pack_pair<T>(out.x * scale, out.y * scale);
  }
  cluster.sync();  // a block that left would take its findings away from the others
#else
  __trap();  // the host lets no blocks share keys on these cards
#endif
}

// A single query: neighbouring heads that share keys become the rows of one.
inline AttentionParams folded(AttentionParams p) {
  const int group = p.heads / p.kv_heads;
  p.s = group, p.heads = p.kv_heads, p.one_place = true;
  for (HeadStrides* s : {&p.q_strides, &p.y_strides}) s->row = s->head, s->head *= group;
  p.mask_strides[2] = p.mask_strides[1], p.mask_strides[1] *= group;
  return p;
}

// Blocks that share the keys of a folded query, each of which still has `keys`: where every head has a block of its own
// and they fill half of the card, sharing only costs.
inline int sharing_blocks(const AttentionParams& p, int rows, int keys) {
  constexpr int64_t kMultiprocessors = 132;
  const int64_t blocks = int64_t{p.batch} * p.heads * ((p.s + rows - 1) / rows);
  int ranks = 1;
  while (2 * blocks <= kMultiprocessors && ranks < 8 && blocks * ranks < kMultiprocessors && p.t > ranks * keys)
    ranks *= 2;
  return ranks;
}

}  // namespace attention_mma
}  // namespace cuvil
