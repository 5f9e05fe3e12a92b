// The kernel of small_product.cuh, for one type of elements. Sums are in fp32,
// those of a cluster added in the order of its blocks, so that results do not
// depend on timing.
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

constexpr int kColumns = 64, kDepth = 64,
              kStages = 4;                // a step multiplies [Rows, kDepth] by [kDepth, kColumns]
constexpr int kChunk = 8;                 // elements of 16 bytes
constexpr int kChunks = kDepth / kChunk;  // of a row of either tile: 128 bytes

template <typename T_, int Rows_, bool TransB_>
struct Tile {
  using T = T_;
  static constexpr int Rows = Rows_;
  static constexpr bool TransB = TransB_;
  // Warps lie 32 rows by 32 columns, for the smallest tile by 16 columns.
  static constexpr int WarpColumns = Rows == 32 ? 16 : 32;
  static constexpr int WarpsAcross = kColumns / WarpColumns;
  static constexpr int Threads = 32 * WarpsAcross * (Rows / 32);
  static constexpr int StageA = Rows * kDepth,
                       StageB = kColumns * kDepth;  // elements
  static constexpr int Bytes = kStages * (StageA + StageB) * static_cast<int>(sizeof(T));
  static_assert(Rows * (kColumns + 4) * 4 <= Bytes, "the partial sums take the stages' place");
};

// Rows of 128 bytes whose 16-byte chunks are permuted, so that eight rows of
// one column lie in different banks.
template <typename T>
__device__ __forceinline__ T* at_chunk(T* tile, int row, int chunk) {
  return tile + row * kDepth + (chunk ^ (row & 7)) * kChunk;
}

template <typename Tl>
struct Block {
  using T = typename Tl::T;
  static constexpr int kRowsAtOnce = Tl::Threads / kChunks;  // that all threads fetch
  const SmallProductParams& p;
  T* const shared;
  const int row0 = static_cast<int>(blockIdx.y) * Tl::Rows, column0 = static_cast<int>(blockIdx.x) * kColumns;
  const int row = static_cast<int>(threadIdx.x) / kChunks, chunk = static_cast<int>(threadIdx.x) % kChunks;
  int first_step, steps;  // of K, for this block
  const T *a, *b;         // what this thread fetches first of each operand

  __device__ Block(const SmallProductParams& params, T* memory) : p(params), shared(memory) {
    const int all = static_cast<int>((p.k + kDepth - 1) / kDepth);
    const int rank = static_cast<int>(blockIdx.z), ranks = static_cast<int>(gridDim.z);
    first_step = all * rank / ranks;
    steps = all * (rank + 1) / ranks - first_step;
    const int64_t k = int64_t{first_step} * kDepth, column = column0;
    a = static_cast<const T*>(p.a) + (row0 + row) * p.k + k + chunk * kChunk;
    b = static_cast<const T*>(p.b) + (Tl::TransB ? (column + row) * p.k + k : (k + row) * p.n + column) +
        chunk * kChunk;
  }

  __device__ T* stage_a(int s) const { return shared + s % kStages * (Tl::StageA + Tl::StageB); }
  __device__ T* stage_b(int s) const { return stage_a(s) + Tl::StageA; }

  __device__ void fetch_a(int s) const {
    const bool inside = (first_step + s) * kDepth + chunk * kChunk < p.k;
    const T* from = a + int64_t{s} * kDepth;
#pragma unroll
    for (int i = 0; i < Tl::Rows; i += kRowsAtOnce, from += kRowsAtOnce * p.k) {
      const bool valid = inside && row0 + row + i < p.m;
      copy16_async(at_chunk(stage_a(s), row + i, chunk), valid ? from : p.a, valid);
    }
  }

  __device__ void fetch_b(int s) const {
    const int k = (first_step + s) * kDepth;
    const int64_t pitch = Tl::TransB ? p.k : p.n;
    const bool inside = Tl::TransB ? k + chunk * kChunk < p.k : column0 + chunk * kChunk < p.n;
    const T* from = b + int64_t{s} * kDepth * (Tl::TransB ? 1 : pitch);
#pragma unroll
    for (int i = 0; i < kColumns; i += kRowsAtOnce, from += kRowsAtOnce * pitch) {
      const bool valid = inside && (Tl::TransB ? column0 + row + i < p.n : k + row + i < p.k);
      copy16_async(at_chunk(stage_b(s), row + i, chunk), valid ? from : p.b, valid);
    }
  }

  // Adds this block's part of the product to the warp's 32 rows.
  __device__ void multiply(float (&sum)[2][Tl::WarpColumns / 8][4]) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int warp_row = warp / Tl::WarpsAcross * 32, warp_column = warp % Tl::WarpsAcross * Tl::WarpColumns;
#pragma unroll 1
    for (int s = 0; s < steps; ++s) {
      wait_copies<kStages - 2>();
      __syncthreads();  // all copies of this stage are there, and all warps are
                        // done with the one fetched into next
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
};

// Finishes a tile by way of shared memory, in whole chunks of rows; the blocks
// of a cluster add up their sums and share the rows. The code is short on
// purpose: a block runs it once, so that fetching its instructions takes longer
// than executing them (unrolled to 16 KB it cost 3 us of a product's 9 on an
// H200).
template <typename Tl, bool Split, typename Act>
__device__ __forceinline__ void finish(const Block<Tl>& block, const float (&sum)[2][Tl::WarpColumns / 8][4]) {
  using T = typename Tl::T;
  constexpr int kWidth = 4, kPerRow = kColumns / kWidth, kRowsAtOnce = Tl::Threads / kPerRow;
  constexpr int kPitch = kColumns + 4;  // floats: neighbouring rows start in different banks
  const SmallProductParams& p = block.p;
  float* const mine = reinterpret_cast<float*>(block.shared);
  wait_copies<0>();
  __syncthreads();  // all products have been computed: the stages are free
  {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    float* const at = mine + (warp / Tl::WarpsAcross * 32 + lane / 4) * kPitch +
                      warp % Tl::WarpsAcross * Tl::WarpColumns + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < Tl::WarpColumns / 8; ++j)
        *reinterpret_cast<float2*>(at + 8 * i * kPitch + 8 * j) =
            make_float2(sum[i / 2][j][i % 2 * 2], sum[i / 2][j][i % 2 * 2 + 1]);
  }
  const int column = static_cast<int>(threadIdx.x) % kPerRow * kWidth;
  const bool live = block.column0 + column < p.n;
  float bias[kWidth] = {};
  if (p.bias && live) {
    const T* const from = static_cast<const T*>(p.bias) + block.column0 + column;  // of any alignment
#pragma unroll
    for (int j = 0; j < kWidth; ++j) bias[j] = to_compute(from[j]);
  }
  const int rank = static_cast<int>(blockIdx.z), ranks = static_cast<int>(gridDim.z), rows = Tl::Rows / ranks;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  namespace cg = cooperative_groups;
  const cg::cluster_group cluster = cg::this_cluster();
  if constexpr (Split) cluster.sync();
#else
  if constexpr (Split) __trap();  // the host cuts no sum on these cards
#endif
  if constexpr (!Split) __syncthreads();
  const int end = static_cast<int>(min(int64_t{rows} * (rank + 1), p.m - block.row0));
#pragma unroll 1
  for (int row = rows * rank + static_cast<int>(threadIdx.x) / kPerRow; live && row < end; row += kRowsAtOnce) {
    float4 total = *reinterpret_cast<const float4*>(mine + row * kPitch + column);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if constexpr (Split) {
      total = make_float4(0, 0, 0, 0);
#pragma unroll 2
      for (int r = 0; r < ranks; ++r) {
        const float4 v = *reinterpret_cast<const float4*>(cluster.map_shared_rank(mine, static_cast<unsigned>(r)) +
                                                          row * kPitch + column);
        total.x += v.x, total.y += v.y, total.z += v.z, total.w += v.w;
      }
    }
#endif
    const float x[kWidth] = {total.x, total.y, total.z, total.w};
    const int64_t at = (int64_t{block.row0} + row) * p.n + block.column0 + column;
    Vec<T, kWidth> c, y;
    if (p.c) c = load<T, kWidth>(static_cast<const T*>(p.c) + at);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      float v = p.alpha * x[j] + bias[j];
      if (p.c) v += p.beta * to_compute(c[j]);
      y[j] = from_compute<T>(Act::apply(p.activation, v));
    }
    store(static_cast<T*>(p.d) + at, y);
  }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if constexpr (Split) cluster.sync();  // a block that left would take its sums away from the others
#endif
}

template <typename Tl, bool Split, typename Act>
__global__ void __launch_bounds__(Tl::Threads) small_product(const __grid_constant__ SmallProductParams p) {
  extern __shared__ __align__(128) unsigned char memory[];
  const Block<Tl> block(p, reinterpret_cast<typename Tl::T*>(memory));
  const int ahead = min(block.steps, kStages - 1);
  if (p.b_constant) {
#pragma unroll 1
    for (int s = 0; s < ahead; ++s) block.fetch_b(s);
  }
  wait_for_predecessor();
#pragma unroll 1
  for (int s = 0; s < kStages - 1; ++s) {
    if (s < ahead) {
      block.fetch_a(s);
      if (!p.b_constant) block.fetch_b(s);
    }
    commit_copies();  // also empty ones: the loop counts groups
  }
  float sum[2][Tl::WarpColumns / 8][4] = {};
  block.multiply(sum);
  finish<Tl, Split, Act>(block, sum);
}

template <typename Tl, bool Split, typename Act>
cudaError_t launch_kernel(const SmallProductParams& p, int split, cudaStream_t stream) {
  const int64_t rows = (p.m + Tl::Rows - 1) / Tl::Rows, columns = (p.n + kColumns - 1) / kColumns;
  // Rows and columns are counted in 32 bits.
  if (rows > 65535 || std::max({p.m, p.n, p.k}) > INT32_MAX - 128) return cudaErrorInvalidValue;
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
