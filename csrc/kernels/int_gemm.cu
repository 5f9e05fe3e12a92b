#include "device/index.cuh"
#include "device/quant.cuh"
#include "kernels/int_gemm.cuh"

namespace cuvil {
namespace {

using namespace device;

constexpr int kThreads = 256;
constexpr int kTile = 64;   // rows and columns a block
constexpr int kWords = 16;  // of four numbers, a step along k

// Copies `kTile` packed rows from `first` on, kWords words from `word` on, to shared memory; zeros outside.
__device__ __forceinline__ void stage(const int8_t* x, int64_t first, int64_t rows, int64_t kp, int64_t word,
                                      int (*tile)[kWords + 1]) {
  const int r = threadIdx.x / 4, w = threadIdx.x % 4 * 4;
  const int64_t row = first + r, k = (word + w) * 4;
  int4 v = make_int4(0, 0, 0, 0);
  if (row < rows && k < kp) v = *reinterpret_cast<const int4*>(x + row * kp + k);
  tile[r][w] = v.x, tile[r][w + 1] = v.y, tile[r][w + 2] = v.z, tile[r][w + 3] = v.w;
}

// A thread has 4 x 4 of a block's 64 x 64: rows 4 ty + i, columns tx + 16 j.
__global__ void __launch_bounds__(kThreads) int_gemm(IntGemmParams p, int64_t tiles_m, int64_t tiles_n) {
  __shared__ int left[kTile][kWords + 1], right[kTile][kWords + 1];
  const int64_t tile = blockIdx.x, batch = tile / (tiles_m * tiles_n);
  const int64_t first_row = tile / tiles_n % tiles_m * kTile, first_column = tile % tiles_n * kTile;
  const int8_t* a = p.a + batch * p.stride_a;
  const int8_t* b = p.b + batch * p.stride_b;
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  int acc[4][4] = {};
  for (int64_t word = 0; word * 4 < p.kp; word += kWords) {
    stage(a, first_row, p.m, p.kp, word, left);
    stage(b, first_column, p.n, p.kp, word, right);
    __syncthreads();
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      int l[4], r[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) l[i] = left[4 * ty + i][w], r[i] = right[tx + 16 * i][w];
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) acc[i][j] = __dp4a(l[i], r[j], acc[i][j]);
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int64_t row = first_row + 4 * ty + i, column = first_column + tx + 16 * j;
      if (row < p.m && column < p.n) p.d[(batch * p.m + row) * p.n + column] = acc[i][j];
    }
}

__device__ __forceinline__ int zero_point(const Operand& o, bool is_unsigned, int64_t i) {
  // Relative to what is stored.
  const int shift = is_unsigned ? 128 : 0;
  if (!o.data) return -shift;
  return read_code<Code::kInt8>(o.data, !is_unsigned, o.count == 1 ? 0 : i % o.count) - shift;
}

__device__ __forceinline__ float scale_of(const Operand& o, int64_t i) {
  return o.data ? read_float(o.data, o.dtype, o.count == 1 ? 0 : i % o.count) : 1.f;
}

template <typename Y, typename Div>
__global__ void __launch_bounds__(kThreads)
    int_epilogue(IntEpilogueParams p, int64_t total, Div by_columns, Div by_rows) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= total) return;
  typename Div::Index line_of_i, column_of_i, batch_of_i, row_of_i;
  by_columns.divmod(static_cast<typename Div::Index>(i), line_of_i, column_of_i);
  by_rows.divmod(line_of_i, batch_of_i, row_of_i);
  const int64_t column = column_of_i, line = line_of_i, row = row_of_i, batch = batch_of_i;
  const int64_t wide_row = row + batch * p.row_offset;
  // Sums wrap round as int32 does, without its undefined overflow.
  const unsigned za = static_cast<unsigned>(zero_point(p.row_zero, p.rows_unsigned, wide_row));
  const unsigned zb = static_cast<unsigned>(zero_point(p.column_zero, p.columns_unsigned, column));
  const unsigned row_sum = static_cast<unsigned>(p.row_sums[batch * p.row_sums_stride + row]);
  const unsigned column_sum = static_cast<unsigned>(p.column_sums[batch * p.column_sums_stride + column]);
  unsigned sum = static_cast<unsigned>(p.acc[line * p.ld + column]);
  sum += static_cast<unsigned>(p.k) * za * zb - za * column_sum - zb * row_sum;
  Y* y = static_cast<Y*>(p.y) + i;
  if constexpr (std::is_same_v<Y, int32_t>) {
    *y = static_cast<int>(sum);
  } else {
    const float scale = __fmul_rn(scale_of(p.row_scale, wide_row), scale_of(p.column_scale, column));
    if constexpr (sizeof(Y) == 1) {
      if (p.bias.data) sum += static_cast<unsigned>(static_cast<const int32_t*>(p.bias.data)[wide_row % p.bias.count]);
      const bool is_signed = std::is_same_v<Y, int8_t>;
      const int zero = p.y_zero.data ? static_cast<const Y*>(p.y_zero.data)[0] : 0;
      const float v = __fmul_rn(static_cast<float>(static_cast<int>(sum)), __fdiv_rn(scale, scale_of(p.y_scale, 0)));
      *y = static_cast<Y>(quantize_code(v, zero, lowest_code(8, is_signed), highest_code(8, is_signed)));
    } else {
      const float bias = p.bias.data ? read_float(p.bias.data, p.bias.dtype, column) : 0.f;
      *y = from_compute<Y>(static_cast<float>(static_cast<int>(sum)) * scale + bias);
    }
  }
}

template <typename Y>
void launch_epilogue(const IntEpilogueParams& p, int64_t total, cudaStream_t stream) {
  const unsigned blocks = blocks_for(total, kThreads);
  if (total <= kMaxIndex32)
    int_epilogue<Y, FastDiv32><<<blocks, kThreads, 0, stream>>>(p, total, FastDiv32(static_cast<uint32_t>(p.n)),
                                                                FastDiv32(static_cast<uint32_t>(p.m)));
  else
    int_epilogue<Y, Div64><<<blocks, kThreads, 0, stream>>>(p, total, Div64(static_cast<uint64_t>(p.n)),
                                                            Div64(static_cast<uint64_t>(p.m)));
}

}  // namespace

cudaError_t launch_int_gemm(const IntGemmParams& p, cudaStream_t stream) {
  const int64_t tiles_m = (p.m + kTile - 1) / kTile, tiles_n = (p.n + kTile - 1) / kTile;
  const int64_t tiles = tiles_m * tiles_n * p.batch;
  if (tiles == 0) return cudaSuccess;
  if (tiles > kMaxIndex32) return cudaErrorInvalidValue;
  int_gemm<<<static_cast<unsigned>(tiles), kThreads, 0, stream>>>(p, tiles_m, tiles_n);
  return cudaGetLastError();
}

cudaError_t launch_int_epilogue(const IntEpilogueParams& p, cudaStream_t stream) {
  const int64_t total = p.batch * p.m * p.n;
  if (total == 0) return cudaSuccess;
  switch (p.y_dtype) {
    case DType::kI32:
      launch_epilogue<int32_t>(p, total, stream);
      break;
    case DType::kI8:
      launch_epilogue<int8_t>(p, total, stream);
      break;
    case DType::kU8:
      launch_epilogue<uint8_t>(p, total, stream);
      break;
    case DType::kF32:
      launch_epilogue<float>(p, total, stream);
      break;
    case DType::kF16:
      launch_epilogue<__half>(p, total, stream);
      break;
    default:
      return cudaErrorInvalidValue;
  }
  return cudaGetLastError();
}

}  // namespace cuvil
