#include "device/activation.cuh"
#include "device/vec.cuh"
#include "kernels/int4_gemv.cuh"

namespace cuvil {
namespace {

using namespace device;

constexpr int kWarps = 8, kColumns = 4, kPlaces = 8;

// A block has 32 rows of the weight, its warps share the depth. A lane has 4 rows and 8 places of each unit: two of
// every eight.
template <int Bits>
__global__ void __launch_bounds__(kWarps * 32) int4_gemv(Int4GemvParams p, bool vectors) {
  __shared__ float sums[kWarps][kColumns][kUnitRows];
  const Int4Weight& w = p.weight;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, q = lane % 4;
  const int first = static_cast<int>(blockIdx.y) * kColumns, columns = min(kColumns, p.m - first);
  const int units = w.depth_units();
  float acc[kColumns][4] = {};
  for (int unit = warp; unit < units; unit += kWarps) {
    const int depth = unit * kUnitDepth + q * 2;
    uint32_t words[Bits / 4][4];
#pragma unroll
    for (int plane = 0; plane < Bits / 4; ++plane) {
      const int64_t at = ((static_cast<int64_t>(blockIdx.x) * units + unit) * (Bits / 4) + plane) * 32 + lane;
      const uint4 v = __ldcs(w.codes + at);
      words[plane][0] = v.x, words[plane][1] = v.y, words[plane][2] = v.z, words[plane][3] = v.w;
    }
    float x[kColumns][kPlaces];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const float* from = p.x + static_cast<int64_t>(first + c) * w.depth;
#pragma unroll
      for (int k = 0; k < kPlaces; k += 2) {
        const int place = depth + k / 2 * 8;
        if (vectors && c < columns && place < w.depth) {
          const Vec<float, 2> v = load<float, 2>(from + place);
          x[c][k] = v[0], x[c][k + 1] = v[1];
        } else {
          x[c][k] = c < columns && place < w.depth ? from[place] : 0.f;
          x[c][k + 1] = c < columns && place + 1 < w.depth ? from[place + 1] : 0.f;
        }
      }
    }
#pragma unroll
    for (int step = 0; step < kUnitDepth / kStepDepth; ++step) {
      const int first_place = unit * kUnitDepth + step * kStepDepth;
      if (first_place >= w.depth) break;  // no group there
      const int64_t values =
          (static_cast<int64_t>(first_place >> w.group_shift) * w.row_units() + blockIdx.x) * kUnitRows + g * 4;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float scale = static_cast<const float*>(w.scales)[values + j];
        const int zero = w.zeros ? w.zeros[values + j] : w.zero;
        const float offset = w.offsets ? static_cast<const float*>(w.offsets)[values + j] : 0.f;
#pragma unroll
        for (int k = 0; k < kPlaces / 2; ++k) {
          const CodePlace at = code_place(Bits, j / 2, step, j % 2 + k / 2 * 2, k % 2);
          const int code = words[at.plane][at.word] >> at.shift & ((1 << Bits) - 1);
          const float number = fmaf(static_cast<float>(code - zero), scale, offset);
#pragma unroll
          for (int c = 0; c < kColumns; ++c) acc[c][j] = fmaf(number, x[c][step * 4 + k], acc[c][j]);
        }
      }
    }
  }
#pragma unroll
  for (int c = 0; c < kColumns; ++c)
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float sum = acc[c][j];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      if (q == 0) sums[warp][c][g + 8 * j] = sum;
    }
  __syncthreads();
  const int c = warp, row = static_cast<int>(blockIdx.x) * kUnitRows + lane;
  if (c >= columns || row >= w.rows) return;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) sum += sums[i][c][lane];
  const int64_t at = static_cast<int64_t>(first + c) * w.rows + row;
  if (p.bias) sum += p.bias[row];
  if (p.residual) sum += p.residual[at];
  p.y[at] = activate(p.activation, sum);
}

}  // namespace

cudaError_t launch_int4_gemv(const Int4GemvParams& p, cudaStream_t stream) {
  const int groups = (p.m + kColumns - 1) / kColumns;
  if (p.weight.rows == 0 || groups == 0) return cudaSuccess;
  if (groups > 65535) return cudaErrorInvalidValue;
  const dim3 grid(static_cast<unsigned>(p.weight.row_units()), static_cast<unsigned>(groups));
  const bool vectors = p.weight.depth % 2 == 0 && reinterpret_cast<uintptr_t>(p.x) % 8 == 0;
  if (p.weight.bits == 4)
    int4_gemv<4><<<grid, kWarps * 32, 0, stream>>>(p, vectors);
  else
    int4_gemv<8><<<grid, kWarps * 32, 0, stream>>>(p, vectors);
  return cudaGetLastError();
}

}  // namespace cuvil
