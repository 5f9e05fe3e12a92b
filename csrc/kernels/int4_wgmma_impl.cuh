// The kernel of int4_gemm.cuh for sm_90: operands A of wgmma are made from codes in registers, B is x in shared memory.
//
// Eight warps, two warpgroups, each have 32 rows of the weight and all columns of the tile: codes are read and turned
// into numbers once for all of them. The copy engine fetches up to `stages` steps ahead: each warp's codes, the step's
// scales and zero points, and x in two boxes of 64 places. The warps take turns in telling it so: a ninth warp for that
// would leave the eight with too few registers. Tiles and steps are shared out as in int4_gemm_impl.cuh.
//
// The kernel behind may start at once: where two blocks fit on a multiprocessor it fills its stages with codes while
// this one works.
#pragma once

#include "device/bulk_copy.cuh"
#include "device/int4_decode.cuh"
#include "device/launch.cuh"
#include "device/wgmma.cuh"
#include "kernels/int4_gemm_result.cuh"
#include "kernels/int4_x_map.cuh"

namespace cuvil {
namespace int4_gemm {

// How codes become numbers.
enum class Scaling {
  kNumbers,  // a step is of one group, without offsets
  kUnits,    // each unit is of one group
};

template <typename T_, int Columns_, Scaling Scaling_>
struct WgmmaShape {
  using T = T_;
  static constexpr int Columns = Columns_, Rows = 256, Depth = 128, Units = Depth / kUnitDepth;
  static constexpr Scaling kScaling = Scaling_;
  static constexpr int WarpsRow = 8, WarpsDepth = 1, kThreads = 256;
  static constexpr int Nt = Columns / 8;
  static constexpr int ColumnsOut = int4_columns_out(Columns), PitchOut = Rows + 4;
  // What the registers allow.
  static constexpr int kMinBlocks = Columns < 64 || (Columns == 64 && Scaling_ == Scaling::kNumbers) ? 2 : 1;
  static constexpr int kBoxBytes = Columns * kBoxDepth * 2, kUnitBytes = unit_bytes(4);
  static __device__ __forceinline__ void sync() { __syncthreads(); }
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// The block's work and its stages.
template <typename S>
struct Stages {
  using T = typename S::T;
  const Int4GemmParams& p;
  const Launch& l;
  unsigned char* shared;  // of stage 0
  uint32_t address, barriers;

  int begin, count;
  Cursor first;

  __device__ __forceinline__ Stages(const Int4GemmParams& p_, const Launch& l_, unsigned char* dynamic) : p(p_), l(l_) {
    const uint32_t raw = shared_address(dynamic);
    address = (raw + Int4Stage::kSwizzle - 1) / Int4Stage::kSwizzle * Int4Stage::kSwizzle;
    shared = dynamic + (address - raw);
    barriers = address + p.way.stages * l.stage.bytes + S::ColumnsOut * S::PitchOut * 4;
    const int block = static_cast<int>(blockIdx.x);
    begin = l.schedule.begin(block), count = l.schedule.begin(block + 1) - begin;
    const int tile = begin / l.schedule.steps;
    first = {tile / l.column_tiles, tile % l.column_tiles, begin % l.schedule.steps};
  }
  __device__ __forceinline__ uint32_t full(int slot) const { return barriers + slot * 16; }
  __device__ __forceinline__ uint32_t empty(int slot) const { return barriers + slot * 16 + 8; }
  __device__ __forceinline__ float* out() const {
    return reinterpret_cast<float*>(shared + p.way.stages * l.stage.bytes);
  }
  __device__ __forceinline__ void init() const {
    for (int i = 0; i < p.way.stages; ++i) {
      barrier_init(full(i), 1);
      barrier_init(empty(i), S::kThreads);
    }
    barrier_init_done();
  }
};

// What a warp does to have a step fetched.
template <typename S>
struct Producer {
  const Stages<S>& s;
  const CUtensorMap& x_map;
  int lane;
  uint64_t policy;

  // All of a step but x; the barrier waits for x, too.
  __device__ __forceinline__ void fetch_weight(int slot, const Cursor& at) const {
    const Int4Weight& w = s.p.weight;
    const Int4Stage& stage = s.l.stage;
    const int first_row = at.row * S::WarpsRow, first_unit = at.step * S::Units;  // in units
    const int rows = min(S::WarpsRow, w.row_units() - first_row), units = min(S::Units, w.depth_units() - first_unit);
    const int first_group = (at.step * S::Depth) >> w.group_shift, groups = min(stage.groups, w.groups - first_group);
    const uint32_t to = s.address + slot * stage.bytes, barrier = s.full(slot);
    const uint32_t code_bytes = static_cast<uint32_t>(units) * S::kUnitBytes;
    const uint32_t values = static_cast<uint32_t>(rows) * kUnitRows;
    if (lane == 0) {
      const uint32_t value_bytes = 2 + (w.zeros ? 1 : 0) + (w.offsets ? 2 : 0);
      barrier_expect(barrier, rows * code_bytes + groups * values * value_bytes + 2 * S::kBoxBytes);
    }
    __syncwarp();
    if (lane < rows)
      bulk_copy(to + stage.codes + lane * (S::Units * S::kUnitBytes),
                w.codes + (static_cast<int64_t>(first_row + lane) * w.depth_units() + first_unit) * 32, code_bytes,
                barrier, policy);
    // Up to four groups a step: a lane for each.
    const int group = lane % 4;
    const int64_t from = (static_cast<int64_t>(first_group + group) * w.row_units() + first_row) * kUnitRows;
    if (group < groups && lane / 4 == 2)
      bulk_copy(to + stage.scales + group * S::Rows * 2, static_cast<const char*>(w.scales) + from * 2, values * 2,
                barrier, policy);
    if (group < groups && lane / 4 == 3 && w.zeros)
      bulk_copy(to + stage.zeros + group * S::Rows, w.zeros + from, values, barrier, policy);
    if (group < groups && lane / 4 == 4 && w.offsets)
      bulk_copy(to + stage.offsets + group * S::Rows * 2, static_cast<const char*>(w.offsets) + from * 2, values * 2,
                barrier, policy);
  }
  __device__ __forceinline__ void fetch_x(int slot, const Cursor& at) const {
    if (lane < 2)
      tensor_copy(s.address + slot * s.l.stage.bytes + lane * S::kBoxBytes, x_map,
                  at.step * S::Depth + lane * kBoxDepth, at.column * S::Columns, s.full(slot));
  }
  __device__ __forceinline__ void next(Cursor& at) const { at.next(s.l.schedule.steps, s.l.column_tiles); }

  // The first steps, by one warp. Returns with the kernel in front at its end, for all warps.
  __device__ __forceinline__ void start(bool mine, int steps) const {
    if (!s.p.constant_weight) wait_for_predecessor();
    Cursor at = s.first;
    for (int i = 0; mine && i < steps; ++i, next(at)) fetch_weight(i, at);
    wait_for_predecessor();  // from here on x is there
    at = s.first;
    for (int i = 0; mine && i < steps; ++i, next(at)) fetch_x(i, at);
  }
};

// A warp that multiplies.
template <typename S>
struct Consumer {
  using T = typename S::T;
  const Stages<S>& s;
  const Producer<S>& producer;
  int lane, warp;

  static __device__ __forceinline__ void hold(float (&acc)[2][S::Nt][4]) {
#pragma unroll
    for (int t = 0; t < 2; ++t)
#pragma unroll
      for (int n = 0; n < S::Nt; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c) wgmma_hold(acc[t][n][c]);
  }

  __device__ __forceinline__ uint32_t zeros_at(const unsigned char* stage, int at) const {
    const Int4Weight& w = s.p.weight;
    return w.zeros ? *reinterpret_cast<const uint32_t*>(stage + s.l.stage.zeros + at)
                   : static_cast<uint32_t>(w.zero) * 0x01010101u;
  }
  __device__ __forceinline__ const T* values_at(const unsigned char* stage, int offset, int at) const {
    return reinterpret_cast<const T*>(stage + offset) + at;
  }
  // Every lane arrives for what it has read itself: no slower than one for its warp, and what racecheck can follow.
  __device__ __forceinline__ void release(int slot) const { barrier_arrive(s.empty(slot)); }

  // Adds the products of 16 places, the k-th of a step, to `sums`.
  static __device__ __forceinline__ void multiply(float (&sums)[2][S::Nt][4], const uint32_t (&a)[2][4], uint64_t x,
                                                  int k) {
#pragma unroll
    for (int tile = 0; tile < 2; ++tile)
      Wgmma<S::Columns>::template run<T>(sums[tile], a[tile], x + k / 4 * (S::kBoxBytes >> 4) + k % 4 * 2);
  }

  // The codes of unit u; zeros behind the end of the depth.
  __device__ __forceinline__ uint4 codes(const unsigned char* stage, int u, int units) const {
    uint4 v = make_uint4(0, 0, 0, 0);
    if (u < units) v = reinterpret_cast<const uint4*>(stage + s.l.stage.codes)[(warp * S::Units + u) * 32 + lane];
    return v;
  }

  __device__ __forceinline__ void add_step(float (&acc)[2][S::Nt][4], int slot, int units, int step) const {
    const Int4Weight& w = s.p.weight;
    const unsigned char* stage = s.shared + slot * s.l.stage.bytes;
    const uint64_t x = wgmma_operand(s.address + slot * s.l.stage.bytes);
    constexpr bool kUnits = S::kScaling == Scaling::kUnits;
    Decoder<T, 4> decoder;
    uint32_t a[2][2][4];
    hold(acc);
#pragma unroll
    for (int u = 0; u < S::Units; ++u) {
      if (u == 0 || kUnits) {
        int at = warp * kUnitRows + lane / 4 * 4;
        if (kUnits) {
          const int first = (step * S::Depth) >> w.group_shift;
          const int group = min((step * S::Depth + u * kUnitDepth) >> w.group_shift, w.groups - 1) - first;
          at += group * S::Rows;
        }
        decoder.load(values_at(stage, s.l.stage.scales, at), zeros_at(stage, at),
                     kUnits && w.offsets ? values_at(stage, s.l.stage.offsets, at) : nullptr);
      }
      const uint4 v = codes(stage, u, units);
      const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int tile = 0; tile < 2; ++tile) decoder.template decode<kUnits>(a[half][tile], words, tile, half);
        wgmma_fence();
        multiply(acc, a[half], x, 2 * u + half);
        wgmma_commit();
        if (2 * u + half + 1 < 2 * S::Units) wgmma_wait<1>();
      }
    }
    wgmma_wait<0>();
    hold(acc);
    release(slot);
  }

  __device__ __forceinline__ void run() const {
    const int steps = s.l.schedule.steps, stages = s.p.way.stages, depth_units = s.p.weight.depth_units();
    const Result<S> result{s.p, s.l, s.out(), lane, warp, 0};
    const int ahead = min(stages, s.count);
    producer.start(warp == 0, ahead);
    Cursor work = s.first, fetched = s.first;
    for (int i = 0; i < ahead; ++i) producer.next(fetched);
    int slot = 0, before = stages - 1, left = s.count - ahead;  // steps that nobody has fetched
    uint32_t parity = 0;
    for (int done = 0; done < s.count;) {
      const int end = done + min(steps - work.step, s.count - done);  // of this tile
      float acc[2][S::Nt][4] = {};
      for (; done < end; ++done, ++work.step) {
        barrier_wait(s.full(slot), parity);
        const int units = depth_units - work.step * S::Units;
        add_step(acc, slot, units, work.step);
        // All warps have most likely left the step before this one: its stage is fetched anew.
        if (done > 0 && left > 0) {
          if (done % S::WarpsRow == warp) {
            barrier_wait(s.empty(before), slot == 0 ? parity ^ 1 : parity);
            producer.fetch_weight(before, fetched);
            producer.fetch_x(before, fetched);
          }
          producer.next(fetched);
          --left;
        }
        before = slot;
        if (++slot == stages) slot = 0, parity ^= 1;
      }
      --work.step;
      result.finish(acc, work);
      work.next(steps, s.l.column_tiles);
    }
  }
};

#endif

extern __shared__ __align__(16) unsigned char wgmma_shared[];

template <typename S>
__global__ void __launch_bounds__(S::kThreads, S::kMinBlocks)
    int4_wgmma_kernel(const __grid_constant__ Int4GemmParams p, const __grid_constant__ Launch l,
                      const __grid_constant__ CUtensorMap x_map) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  const Stages<S> stages(p, l, wgmma_shared);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  if (threadIdx.x == 0) stages.init();
  __syncthreads();
  let_successor_start();
  const Producer<S> producer{stages, x_map, lane, l2_policy(l.column_tiles == 1)};
  Consumer<S>{stages, producer, lane, warp}.run();
#endif
}

template <typename S>
cudaError_t launch_wgmma(const Int4GemmParams& p, cudaStream_t stream) {
  using T = typename S::T;
  const int64_t total = int4_tiles(p.weight, p.way, p.m) * int4_steps(p.weight, p.way);
  const int bytes = int4_shared_bytes(p.weight, p.way);
  if (p.way.blocks < 1 || p.way.blocks > total || total > INT32_MAX || p.way.stages < 2) return cudaErrorInvalidValue;
  const bool y_vectors = reinterpret_cast<uintptr_t>(p.y) % (4 * sizeof(T)) == 0 && p.weight.rows % 4 == 0;
  const Launch l{int4_schedule(p.weight, p.way, p.m), (p.m + S::Columns - 1) / S::Columns, Int4Stage(p.weight, p.way),
                 true, y_vectors};
  CUtensorMap x_map;
  cudaError_t code = int4_x_map(p, S::Columns, &x_map);
  if (code == cudaSuccess)
    code = cudaFuncSetAttribute(int4_wgmma_kernel<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (code != cudaSuccess) return code;
  launch_early(int4_wgmma_kernel<S>, dim3(static_cast<unsigned>(p.way.blocks)), dim3(S::kThreads),
               static_cast<size_t>(bytes), stream, p, l, x_map);
  return cudaGetLastError();
}

template <typename T>
cudaError_t launch_wgmma_any(const Int4GemmParams& p, cudaStream_t stream) {
  if (!int4_wgmma_serves(p.weight) || !p.way.wide) return cudaErrorInvalidValue;
  const bool units = p.weight.group_shift < 7 || p.weight.offsets;
  switch (p.way.columns) {
    case 32:
      return units ? launch_wgmma<WgmmaShape<T, 32, Scaling::kUnits>>(p, stream)
                   : launch_wgmma<WgmmaShape<T, 32, Scaling::kNumbers>>(p, stream);
    case 64:
      return units ? launch_wgmma<WgmmaShape<T, 64, Scaling::kUnits>>(p, stream)
                   : launch_wgmma<WgmmaShape<T, 64, Scaling::kNumbers>>(p, stream);
    case 128:
      return units ? launch_wgmma<WgmmaShape<T, 128, Scaling::kUnits>>(p, stream)
                   : launch_wgmma<WgmmaShape<T, 128, Scaling::kNumbers>>(p, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace int4_gemm
}  // namespace cuvil
