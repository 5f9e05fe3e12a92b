#include "device/index.cuh"
#include "device/quant.cuh"
#include "device/reduce.cuh"
#include "kernels/int_gemm.cuh"

namespace cuvil {
namespace {

using namespace device;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kTile = 32;

__device__ __forceinline__ int stored(const void* x, bool is_unsigned, int64_t i) {
  return is_unsigned ? static_cast<int>(static_cast<const uint8_t*>(x)[i]) - 128 : static_cast<const int8_t*>(x)[i];
}

// A warp a row.
__global__ void __launch_bounds__(kThreads) pack_rows(PackRowsParams p, int64_t kp) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (row >= p.rows) return;
  int sum = 0;
  for (int64_t k = threadIdx.x % 32; k < kp; k += 32) {
    const int v = k < p.k ? stored(p.x, p.is_unsigned, row * p.k + k) : 0;
    sum += v;
    p.y[row * kp + k] = static_cast<int8_t>(v);
  }
  sum = warp_reduce(sum, Sum());
  if (threadIdx.x % 32 == 0) p.sums[row] = sum;
}

// A block takes kTile columns through all of k, by way of shared memory: reads along n, writes along k.
__global__ void __launch_bounds__(kThreads) pack_columns(PackColumnsParams p, int64_t kp, int64_t blocks_n) {
  __shared__ int8_t tile[kTile][kTile + 1];
  __shared__ int partial[kWarps][kTile];
  const int64_t batch = blockIdx.x / blocks_n, first = blockIdx.x % blocks_n * kTile;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t column = first + lane;
  int sum = 0;
  for (int64_t start = 0; start < kp; start += kTile) {
    for (int r = warp; r < kTile; r += kWarps) {
      const int64_t k = start + r;
      const bool inside = k < p.k && column < p.n;
      const int v = inside ? stored(p.x, p.is_unsigned, (batch * p.k + k) * p.n + column) : 0;
      sum += v;
      tile[r][lane] = static_cast<int8_t>(v);
    }
    __syncthreads();
    for (int r = warp; r < kTile; r += kWarps)
      if (first + r < p.n && start + lane < kp)
        p.y[(batch * p.padded_n + first + r) * kp + start + lane] = tile[lane][r];
    __syncthreads();
  }
  partial[warp][lane] = sum;
  __syncthreads();
  if (warp == 0 && column < p.n) {
    for (int w = 1; w < kWarps; ++w) sum += partial[w][lane];
    p.sums[batch * p.padded_n + column] = sum;
  }
}

// A warp a pixel of a group.
__global__ void __launch_bounds__(kThreads) pack_windows(PackWindowsParams p, int64_t k_count, int64_t kp) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (row >= p.images * p.groups * p.pixels) return;
  const int64_t plane = row / p.pixels, pixel = row % p.pixels;  // plane: an image's group
  const int zero = p.zero_point ? stored(p.zero_point, p.is_unsigned, 0) : p.is_unsigned ? -128 : 0;
  int64_t corner[3] = {0, 0, 0}, rest = pixel, in_size = 1, window = 1;
  for (int d = p.rank - 1; d >= 0; --d) {
    corner[d] = rest % p.out[d] * p.stride[d] - p.pad[d];
    rest /= p.out[d];
    in_size *= p.in[d];
    window *= p.kernel[d];
  }
  int8_t* y = p.y + (plane * p.padded_pixels + pixel) * kp;
  int sum = 0;
  for (int64_t k = threadIdx.x % 32; k < kp; k += 32) {
    int v = 0;
    if (k < k_count) {
      const int64_t channel = k / window;
      int64_t tap = k % window, offset = 0, step = 1;
      bool inside = true;
      for (int d = p.rank - 1; d >= 0; --d) {
        const int64_t at = corner[d] + tap % p.kernel[d] * p.dilation[d];
        tap /= p.kernel[d];
        inside = inside && at >= 0 && at < p.in[d];
        offset += at * step;
        step *= p.in[d];
      }
      v = inside ? stored(p.x, p.is_unsigned, (plane * p.channels + channel) * in_size + offset) : zero;
    }
    sum += v;
    y[k] = static_cast<int8_t>(v);
  }
  sum = warp_reduce(sum, Sum());
  if (threadIdx.x % 32 == 0) p.sums[plane * p.padded_pixels + pixel] = sum;
}

}  // namespace

cudaError_t launch_pack_rows(const PackRowsParams& p, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  pack_rows<<<blocks_for(p.rows, kWarps), kThreads, 0, stream>>>(p, packed_k(p.k));
  return cudaGetLastError();
}

cudaError_t launch_pack_columns(const PackColumnsParams& p, cudaStream_t stream) {
  if (p.batch * p.n == 0) return cudaSuccess;
  const int64_t blocks_n = (p.n + kTile - 1) / kTile;
  pack_columns<<<static_cast<unsigned>(blocks_n * p.batch), kThreads, 0, stream>>>(p, packed_k(p.k), blocks_n);
  return cudaGetLastError();
}

cudaError_t launch_pack_windows(const PackWindowsParams& p, cudaStream_t stream) {
  const int64_t rows = p.images * p.groups * p.pixels;
  if (rows == 0) return cudaSuccess;
  int64_t k = p.channels;
  for (int d = 0; d < p.rank; ++d) k *= p.kernel[d];
  pack_windows<<<blocks_for(rows, kWarps), kThreads, 0, stream>>>(p, k, packed_k(k));
  return cudaGetLastError();
}

}  // namespace cuvil
