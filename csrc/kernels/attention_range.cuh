// Which keys a query of an attention kernel sees by its place, whatever the mask.
#pragma once

#include "device/vec.cuh"
#include "kernels/attention.cuh"

namespace cuvil {

// Of one batch entry. Query `row` sees keys [begin(row), end(row)), which may be empty; neither shrinks with the row.
struct KeyRange {
  int length;  // no key from here on
  int behind;  // begin is row * step + behind
  int ahead;   // end is row * step + ahead
  int step;    // 1, or 0 where all rows stand at one place

  __device__ __forceinline__ int begin(int row) const { return max(0, row * step + behind); }
  __device__ __forceinline__ int end(int row) const { return min(length, row * step + ahead); }
};

// s + t is at most INT_MAX. What lies outside of [-t, t] is as good as there: rows are below s.
__device__ __forceinline__ KeyRange key_range(const AttentionParams& p, int64_t batch) {
  int64_t length = p.t;
  if (p.lengths) {
    length =
        p.lengths64 ? static_cast<const int64_t*>(p.lengths)[batch] : static_cast<const int32_t*>(p.lengths)[batch];
    length += p.length_bias;
  }
  const int64_t t = p.t, s = p.one_place ? 1 : p.s, offset = p.offset_by_length ? length - s : p.offset;
  const int right = p.causal ? 0 : p.right;
  const auto clamp = [&](int64_t place) { return static_cast<int>(min(max(place, -s), t)); };
  return {static_cast<int>(min(max(length, int64_t{0}), t)), p.left < 0 ? -p.s : clamp(offset - p.left),
          right < 0 ? p.t : clamp(offset + right + 1), p.one_place ? 0 : 1};
}

// The score that joins a row's sum besides those of its keys.
template <typename T>
__device__ __forceinline__ float sink_of(const AttentionParams& p, int head) {
  return p.sinks ? device::to_compute(static_cast<const T*>(p.sinks)[head]) : 0.f;
}

__device__ __forceinline__ float soft_capped(float score, float cap) { return cap * tanhf(score / cap); }

}  // namespace cuvil
