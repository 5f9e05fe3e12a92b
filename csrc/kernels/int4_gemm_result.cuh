// How a tile of the kernels of int4_gemm.cuh leaves its block.
//
// A tile that one block has alone leaves through shared memory. Of a tile that several have, each writes its sums to
// `partial`, and the last to arrive adds them in the order of the blocks: the same bits every run.
#pragma once

#include "device/activation.cuh"
#include "device/vec.cuh"
#include "kernels/int4_gemm.cuh"

namespace cuvil {
namespace int4_gemm {

using namespace device;

// A place in the block's run: a tile, by its row and column, and a step of it.
struct Cursor {
  int row, column, step;
  __device__ __forceinline__ void next(int steps, int columns) {
    if (++step < steps) return;
    step = 0;
    if (++column == columns) column = 0, ++row;
  }
};

struct Launch {
  TileSchedule schedule;
  int column_tiles;
  Int4Stage stage;
  bool x_vectors;  // rows of x begin at multiples of 16 bytes
  bool y_vectors;  // rows of y at multiples of 4 elements
};

// Not inlined: a kernel has several places that need it, and it is long.
static __device__ __noinline__ float activated(Activation kind, float a, float b, float x) {
  return activate(ActivationParams{kind, a, b}, x);
}

// Four neighbouring elements of a row of y.
template <typename T>
__device__ __forceinline__ void emit(const Int4GemmParams& p, bool y_vectors, int column, int row, float4 sum) {
  if (column >= p.m || row >= p.weight.rows) return;
  const int64_t at = static_cast<int64_t>(column) * p.weight.rows + row;
  const float v[4] = {sum.x, sum.y, sum.z, sum.w};
  const T *bias = static_cast<const T*>(p.bias), *residual = static_cast<const T*>(p.residual);
  Vec<T, 4> y;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float s = v[i];
    if (row + i < p.weight.rows) {
      if (bias) s += to_compute(bias[row + i]);
      if (residual) s += to_compute(residual[at + i]);
    }
    if (p.activation.kind != Activation::kNone) s = activated(p.activation.kind, p.activation.a, p.activation.b, s);
    y[i] = from_compute<T>(s);
  }
  T* to = static_cast<T*>(p.y) + at;
  if (y_vectors) return store<T, 4>(to, y);
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (row + i < p.weight.rows) to[i] = y[i];
}

// S::kThreads threads call it, which S::sync() brings together.
template <typename S>
struct Result {
  using T = typename S::T;
  const Int4GemmParams& p;
  const Launch& l;
  float* out;  // shared memory, S::ColumnsOut * S::PitchOut
  int lane, warp_row, warp_depth;

  __device__ __forceinline__ float4* partial(int slot, int column) const {
    return reinterpret_cast<float4*>(p.partial) + (static_cast<int64_t>(slot) * S::Columns + column) * (S::Rows / 4);
  }

  // The end of this block's part of a tile.
  __device__ __forceinline__ void finish(const float (&acc)[2][S::Nt][4], Cursor at) const {
    const int tile = at.row * l.column_tiles + at.column;
    const int first_block = l.schedule.first_block(tile), last_block = l.schedule.last_block(tile);
    const bool whole = first_block == last_block;
    const int slot = l.schedule.slot(blockIdx.x, tile);
    const int first_column = at.column * S::Columns, first_row = at.row * S::Rows;
    constexpr int kVectors = S::ColumnsOut * (S::Rows / 4), kTiles = S::ColumnsOut / 8;
    const int g = lane / 4, q = lane % 4;
    float* sums = out;
#pragma unroll
    for (int n = 0; n < S::Nt; n += kTiles) {
      // Each warp of the depth adds to what the one before has left.
#pragma unroll
      for (int turn = 0; turn < S::WarpsDepth; ++turn) {
        if (turn == warp_depth) {
#pragma unroll
          for (int i = 0; i < kTiles; ++i)
#pragma unroll
            for (int t = 0; t < 2; ++t)
#pragma unroll
              for (int c = 0; c < 4; ++c) {
                float& to = sums[(i * 8 + 2 * q + c % 2) * S::PitchOut + warp_row * kUnitRows + t * 16 + c / 2 * 8 + g];
                to = turn == 0 ? acc[t][n + i][c] : to + acc[t][n + i][c];
              }
        }
        S::sync();
      }
      for (int i = threadIdx.x; i < kVectors; i += S::kThreads) {
        const int column = i / (S::Rows / 4), row = i % (S::Rows / 4) * 4;
        const float4 v = *reinterpret_cast<const float4*>(sums + column * S::PitchOut + row);
        if (whole)
          emit<T>(p, l.y_vectors, first_column + n * 8 + column, first_row + row, v);
        else if (first_column + n * 8 + column < p.m)
          __stcg(partial(slot, n * 8 + column) + row / 4, v);
      }
      S::sync();
    }
    if (!whole) gather(tile, first_block, last_block, first_column, first_row);
  }

  // The last block to arrive adds the parts of a tile.
  __device__ __forceinline__ void gather(int tile, int first_block, int last_block, int first_column,
                                         int first_row) const {
    __threadfence();
    S::sync();
    int* last = reinterpret_cast<int*>(out);
    if (threadIdx.x == 0) {
      const unsigned others = static_cast<unsigned>(last_block - first_block);
      const bool is_last = atomicAdd(p.counters + tile, 1u) == others;
      if (is_last) p.counters[tile] = 0;  // for the next launch
      *last = is_last;
    }
    S::sync();
    const bool mine = *last;
    S::sync();
    if (!mine) return;
    __threadfence();
    const int first_slot = l.schedule.slot(first_block, tile);
#pragma unroll 1
    for (int i = threadIdx.x; i < S::Columns * (S::Rows / 4); i += S::kThreads) {
      const int column = i / (S::Rows / 4), row = i % (S::Rows / 4);
      if (first_column + column >= p.m) break;  // of later i, too
      float4 sum = make_float4(0, 0, 0, 0);
      constexpr int kAtOnce = 8;  // one after the other, each would take as long as all
#pragma unroll 1
      for (int b = first_block; b <= last_block; b += kAtOnce) {
        float4 v[kAtOnce];
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          v[j] = make_float4(0, 0, 0, 0);
          // All but the first begin within the tile.
          if (b + j <= last_block)
            v[j] = __ldcg(partial(b + j == first_block ? first_slot : 2 * (b + j), column) + row);
        }
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) sum.x += v[j].x, sum.y += v[j].y, sum.z += v[j].z, sum.w += v[j].w;
      }
      emit<T>(p, l.y_vectors, first_column + column, first_row + row * 4, sum);
    }
  }
};

}  // namespace int4_gemm
}  // namespace cuvil
