// Copies many two-dimensional pieces in one launch: Concat gathers them, Split scatters them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace cuvil {

// `rows` runs of `width` bytes, each row `*_pitch` bytes after the one before.
struct Segment {
  const void* source;
  void* target;
  int64_t source_pitch;
  int64_t target_pitch;
  int64_t width;
};

constexpr int kMaxSegments = 48;  // what fits, with room to spare, in the 4 KB of parameters that every driver takes

struct SegmentsParams {
  int count;     // 1..kMaxSegments
  int64_t rows;  // of every segment
  Segment segment[kMaxSegments];
};

cudaError_t launch_segments(const SegmentsParams& params, cudaStream_t stream);

}  // namespace cuvil
