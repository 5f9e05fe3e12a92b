// The kernel of small_product.cuh, for one type of elements. Sums are in fp32, those of a cluster added in the order of
// its blocks, so that results do not depend on timing.
#pragma once

#include <cooperative_groups.h>

#include <algorithm>

#include "device/activation.cuh"
#include "device/launch.cuh"
#include "device/tensor_core.cuh"
#include "device/vec.cuh"
#include "kernels/small_product.cuh"

namespace cuvil::small_product {

using namespace device;

constexpr int kColumns = 64, kDepth = 64, kStages = 4;  // a step multiplies [Rows, kDepth] by [kDepth, kColumns]
constexpr int kChunk = 8;                               // elements of 16 bytes
constexpr int kChunks = kDepth / kChunk;                // of a row of either tile: 128 bytes

template <typename T_, int Rows_, bool TransB_>
struct Tile {
  using T = T_;
  static constexpr int Rows = Rows_;
  static constexpr bool TransB = TransB_;
  // Warps lie 32 rows by 32 columns, for the smallest tile by 16 columns.
  static constexpr int WarpColumns = Rows == 32 ? 16 : 32;
  static constexpr int WarpsAcross = kColumns / WarpColumns;
  static constexpr int Threads = 32 * WarpsAcross * (Rows / 32);
  static constexpr int StageA = Rows * kDepth, StageB = kColumns * kDepth;  // elements
  static constexpr int Bytes = kStages * (StageA + StageB) * static_cast<int>(sizeof(T));
  static_assert(Rows * (kColumns + 4) * 4 <= Bytes, "the partial sums take the stages' place");
};

// Rows of 128 bytes whose 16-byte chunks are permuted, so that eight rows of one column lie in different banks.
template <typename T>
__device__ __forceinline__ T* at_chunk(T* tile, int row, int chunk) {
  return tile + row * kDepth + (chunk ^ (row & 7)) * kChunk;
}

template <typename Tl>
struct Block {
  using T = typename Tl::T;
  const SmallProductParams& p;
  T* const shared;
  const int64_t row0 = int64_t{blockIdx.y} * Tl::Rows, column0 = int64_t{blockIdx.x} * kColumns;
  int first_step, steps;  // of K, for this block

  __device__ Block(const SmallProductParams& params, T* memory) : p(params), shared(memory) {
    const int all = static_cast<int>((p.k + kDepth - 1) / kDepth);
    const int rank = static_cast<int>(blockIdx.z), ranks = static_cast<int>(gridDim.z);
    first_step = all * rank / ranks;
    steps = all * (rank + 1) / ranks - first_step;
  }

  __device__ T* stage_a(int s) const { return shared + s % kStages * (Tl::StageA + Tl::StageB); }
  __device__ T* stage_b(int s) const { return stage_a(s) + Tl::StageA; }

  __device__ void fetch_a(int s) const {
    const int64_t k0 = int64_t{first_step + s} * kDepth;
    for (int i = static_cast<int>(threadIdx.x); i < Tl::Rows * kChunks; i += Tl::Threads) {
      const int row = i / kChunks, chunk = i % kChunks;
      const int64_t r = row0 + row, k = k0 + chunk * kChunk;
      const bool valid = r < p.m && k < p.k;
      copy16_async(at_chunk(stage_a(s), row, chunk), static_cast<const T*>(p.a) + (valid ? r * p.k + k : 0), valid);
    }
  }

  __device__ void fetch_b(int s) const {
    const int64_t k0 = int64_t{first_step + s} * kDepth;
    for (int i = static_cast<int>(threadIdx.x); i < kColumns * kChunks; i += Tl::Threads) {
      const int row = i / kChunks, chunk = i % kChunks;  // of the tile as it lies in memory
      const int64_t n = column0 + (Tl::TransB ? row : chunk * kChunk), k = k0 + (Tl::TransB ? chunk * kChunk : row);
      const bool valid = n < p.n && k < p.k;
      const int64_t offset = Tl::TransB ? n * p.k + k : k * p.n + n;
      copy16_async(at_chunk(stage_b(s), row, chunk), static_cast<const T*>(p.b) + (valid ? offset : 0), valid);
    }
  }

  // Adds this block's part of the product to the warp's 32 rows.
  __device__ void multiply(float (&sum)[2][Tl::WarpColumns / 8][4]) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int warp_row = warp / Tl::WarpsAcross * 32, warp_column = warp % Tl::WarpsAcross * Tl::WarpColumns;
    for (int s = 0; s < steps; ++s) {
      wait_copies<kStages - 2>();
      __syncthreads();  // all copies of this stage are there, and all warps are done with the one fetched into next
      if (s + kStages - 1 < steps) fetch_a(s + kStages - 1), fetch_b(s + kStages - 1);
      commit_copies();
      const T *const a = stage_a(s), *const b = stage_b(s);
#pragma unroll
      for (int k = 0; k < kDepth; k += 16) {
        uint32_t left[2][4];
#pragma unroll
        for (int i = 0; i < 2; ++i)
          load_matrices(left[i], at_chunk(a, warp_row + 16 * i + lane % 16, k / kChunk + lane / 16));
#pragma unroll
        for (int j = 0; j < Tl::WarpColumns; j += 16) {
          uint32_t right[4];
          if constexpr (Tl::TransB)
            load_matrices(right, at_chunk(b, warp_column + j + lane / 16 * 8 + lane % 8, k / kChunk + lane / 8 % 2));
          else
            load_matrices_transposed(right, at_chunk(b, k + lane % 16, (warp_column + j) / kChunk + lane / 16));
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            mma_16x8x16<T>(sum[i][j / 8], left[i], right[0], right[1]);
            mma_16x8x16<T>(sum[i][j / 8 + 1], left[i], right[2], right[3]);
          }
        }
      }
    }
  }

  // N neighbouring elements of a row from their sums.
  template <typename Act, int N>
  __device__ void finish(int64_t row, int64_t column, const float* sum) const {
    const int64_t at = row * p.n + column;
    float x[N];
#pragma unroll
    for (int j = 0; j < N; ++j) x[j] = p.alpha * sum[j];
    if (p.bias) {
      const T* const bias = static_cast<const T*>(p.bias) + column;  // of any alignment
#pragma unroll
      for (int j = 0; j < N; ++j) x[j] += to_compute(bias[j]);
    }
    if (p.c) {
      const auto c = load<T, N>(static_cast<const T*>(p.c) + at);
#pragma unroll
      for (int j = 0; j < N; ++j) x[j] += p.beta * to_compute(c[j]);
    }
    Vec<T, N> y;
#pragma unroll
    for (int j = 0; j < N; ++j) y[j] = from_compute<T>(Act::apply(p.activation, x[j]));
    store(static_cast<T*>(p.d) + at, y);
  }
};

// Where the sums of one thread lie in the tile: f(row, column, pair of sums).
template <typename Tl, typename F>
__device__ __forceinline__ void for_each_pair(const float (&sum)[2][Tl::WarpColumns / 8][4], const F& f) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int row = warp / Tl::WarpsAcross * 32 + lane / 4;
  const int column = warp % Tl::WarpsAcross * Tl::WarpColumns + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int j = 0; j < Tl::WarpColumns / 8; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h) f(row + 16 * i + 8 * h, column + 8 * j, &sum[i][j][2 * h]);
}

template <typename Tl, typename Act>
__device__ __forceinline__ void add_up_and_finish(const Block<Tl>& block,
                                                  const float (&sum)[2][Tl::WarpColumns / 8][4]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  constexpr int kPitch = kColumns + 4;  // floats: neighbouring rows start in different banks
  namespace cg = cooperative_groups;
  const cg::cluster_group cluster = cg::this_cluster();
  float* const mine = reinterpret_cast<float*>(block.shared);
  wait_copies<0>();
  __syncthreads();
  for_each_pair<Tl>(sum, [&](int row, int column, const float* pair) {
    *reinterpret_cast<float2*>(mine + row * kPitch + column) = make_float2(pair[0], pair[1]);
  });
  cluster.sync();
  constexpr int kPerRow = kColumns / kChunk;
  const int ranks = static_cast<int>(gridDim.z), rows = Tl::Rows / ranks, rank = static_cast<int>(blockIdx.z);
  for (int i = static_cast<int>(threadIdx.x); i < rows * kPerRow; i += Tl::Threads) {
    const int row = rank * rows + i / kPerRow, column = i % kPerRow * kChunk;
    if (block.row0 + row >= block.p.m || block.column0 + column >= block.p.n) continue;
    float total[kChunk] = {};
    for (int r = 0; r < ranks; ++r) {
      const float4* const part = reinterpret_cast<const float4*>(
          cluster.map_shared_rank(mine, static_cast<unsigned>(r)) + row * kPitch + column);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float4 v = part[h];
        total[4 * h] += v.x, total[4 * h + 1] += v.y, total[4 * h + 2] += v.z, total[4 * h + 3] += v.w;
      }
    }
    block.template finish<Act, kChunk>(block.row0 + row, block.column0 + column, total);
  }
  cluster.sync();  // a block that left would take its sums away from the others
#else
  __trap();  // the host cuts no sum on these cards
#endif
}

template <typename Tl, bool Split, typename Act>
__global__ void __launch_bounds__(Tl::Threads) small_product(const __grid_constant__ SmallProductParams p) {
  extern __shared__ __align__(128) unsigned char memory[];
  const Block<Tl> block(p, reinterpret_cast<typename Tl::T*>(memory));
  const int ahead = min(block.steps, kStages - 1);
  if (p.b_constant)
    for (int s = 0; s < ahead; ++s) block.fetch_b(s);
  wait_for_predecessor();
  for (int s = 0; s < kStages - 1; ++s) {
    if (s < ahead) {
      block.fetch_a(s);
      if (!p.b_constant) block.fetch_b(s);
    }
    commit_copies();  // also empty ones: the loop counts groups
  }
  float sum[2][Tl::WarpColumns / 8][4] = {};
  block.multiply(sum);
  if constexpr (Split) {
    add_up_and_finish<Tl, Act>(block, sum);
  } else {
    for_each_pair<Tl>(sum, [&](int row, int column, const float* pair) {
      const int64_t r = block.row0 + row, c = block.column0 + column;
      if (r < p.m && c < p.n) block.template finish<Act, 2>(r, c, pair);
    });
  }
}

template <typename Tl, bool Split, typename Act>
cudaError_t launch_kernel(const SmallProductParams& p, int split, cudaStream_t stream) {
  const int64_t rows = (p.m + Tl::Rows - 1) / Tl::Rows, columns = (p.n + kColumns - 1) / kColumns;
  if (rows > 65535 || columns > INT32_MAX) return cudaErrorInvalidValue;
  const auto kernel = small_product<Tl, Split, Act>;
  if (Tl::Bytes > 48 * 1024) {
    const cudaError_t code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Tl::Bytes);
    if (code != cudaSuccess) return code;
  }
  const dim3 grid(static_cast<unsigned>(columns), static_cast<unsigned>(rows), static_cast<unsigned>(split));
  launch_early_cluster(kernel, grid, Tl::Threads, Tl::Bytes, static_cast<unsigned>(split), stream, p);
  return cudaGetLastError();
}

template <typename Tl, bool Split>
cudaError_t launch_activation(const SmallProductParams& p, int split, cudaStream_t stream) {
  switch (p.activation.kind) {
    case Activation::kNone:
      return launch_kernel<Tl, Split, Known<Activation::kNone>>(p, split, stream);
    case Activation::kGelu:
      return launch_kernel<Tl, Split, Known<Activation::kGelu>>(p, split, stream);
    default:
      return launch_kernel<Tl, Split, AnyActivation>(p, split, stream);
  }
}

template <typename T, int Rows>
cudaError_t launch_rows(const SmallProductParams& p, int split, cudaStream_t stream) {
  const auto with = [&]<bool TransB>() {
    using Tl = Tile<T, Rows, TransB>;
    return split > 1 ? launch_activation<Tl, true>(p, split, stream) : launch_activation<Tl, false>(p, split, stream);
  };
  return p.trans_b ? with.template operator()<true>() : with.template operator()<false>();
}

template <typename T>
cudaError_t launch(const SmallProductParams& p, ProductCut cut, cudaStream_t stream) {
  switch (cut.rows) {
    case 32:
      return launch_rows<T, 32>(p, cut.split, stream);
    case 64:
      return launch_rows<T, 64>(p, cut.split, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t launch_f16(const SmallProductParams& p, ProductCut cut, cudaStream_t stream);
cudaError_t launch_bf16(const SmallProductParams& p, ProductCut cut, cudaStream_t stream);

}  // namespace cuvil::small_product
