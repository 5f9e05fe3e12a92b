#include "device/index.cuh"
#include "device/vec.cuh"
#include "kernels/segments.cuh"

namespace cuvil {
namespace {

constexpr int kThreads = 256;
constexpr int kUnroll = 4;  // accesses a thread: enough loads in flight to fill the memory system

struct Piece {
  const char* source;
  char* target;
  int64_t source_pitch;
  int64_t target_pitch;
  int64_t units;      // rows * units of a row
  int64_t per_row;    // units of a row
  int64_t block_end;  // first block after this piece
  int unit;           // bytes an access: 1, 2, 4, 8 or 16
};

struct Table {
  int count;
  Piece piece[kMaxSegments];
};
static_assert(sizeof(Table) <= 4000);

template <int Bytes>
__device__ __forceinline__ void copy(const Piece& p, int64_t first) {
  using T = device::Uint<Bytes>;
#pragma unroll
  for (int k = 0; k < kUnroll; ++k) {
    const int64_t i = first + k * kThreads;
    if (i >= p.units) return;
    // 32-bit division where both fit: a 64-bit one costs more than the access.
    const int64_t row =
        p.units <= device::kMaxIndex32 ? static_cast<uint32_t>(i) / static_cast<uint32_t>(p.per_row) : i / p.per_row;
    const int64_t column = (i - row * p.per_row) * Bytes;
    *reinterpret_cast<T*>(p.target + row * p.target_pitch + column) =
        *reinterpret_cast<const T*>(p.source + row * p.source_pitch + column);
  }
}

__global__ void __launch_bounds__(kThreads) segments(const __grid_constant__ Table table) {
  int low = 0, high = table.count - 1;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (blockIdx.x < table.piece[middle].block_end)
      high = middle;
    else
      low = middle + 1;
  }
  const Piece& p = table.piece[low];
  const int64_t begin = low == 0 ? 0 : table.piece[low - 1].block_end;
  const int64_t first = (blockIdx.x - begin) * (kThreads * kUnroll) + threadIdx.x;
  switch (p.unit) {
    case 16:
      return copy<16>(p, first);
    case 8:
      return copy<8>(p, first);
    case 4:
      return copy<4>(p, first);
    case 2:
      return copy<2>(p, first);
    default:
      return copy<1>(p, first);
  }
}

int unit_of(const Segment& s, int64_t rows) {
  uint64_t bits = reinterpret_cast<uintptr_t>(s.source) | reinterpret_cast<uintptr_t>(s.target) |
                  static_cast<uint64_t>(s.width) | 16;
  if (rows > 1) bits |= static_cast<uint64_t>(s.source_pitch) | static_cast<uint64_t>(s.target_pitch);
  return static_cast<int>(bits & -bits);
}

}  // namespace

cudaError_t launch_segments(const SegmentsParams& params, cudaStream_t stream) {
  Table table;
  table.count = 0;
  int64_t blocks = 0;
  for (int i = 0; i < params.count; ++i) {
    const Segment& s = params.segment[i];
    if (s.width == 0 || params.rows == 0) continue;
    const int unit = unit_of(s, params.rows);
    const int64_t per_row = s.width / unit, units = per_row * params.rows;
    blocks += (units + kThreads * kUnroll - 1) / (kThreads * kUnroll);
    table.piece[table.count++] = {static_cast<const char*>(s.source),
                                  static_cast<char*>(s.target),
                                  s.source_pitch,
                                  s.target_pitch,
                                  units,
                                  per_row,
                                  blocks,
                                  unit};
  }
  if (table.count == 0) return cudaSuccess;
  if (blocks > device::kMaxIndex32) return cudaErrorInvalidValue;
  segments<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(table);
  return cudaGetLastError();
}

}  // namespace cuvil
