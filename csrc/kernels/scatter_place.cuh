// Where an update of ScatterElements or ScatterND goes: shared by the kernels that write and those that combine.
#pragma once

#include "device/index.cuh"
#include "kernels/scatter.cuh"

namespace cuvil::device {

// Output element of update i; -1 when its index is out of range.
__device__ __forceinline__ int64_t scatter_place(const ScatterElementsParams& p, int64_t i) {
  int64_t offset = 0, rest = i;
  for (int d = p.rank - 1; d >= 0; --d) {
    const int64_t q = rest / p.extent[d], r = rest - q * p.extent[d];
    if (d != p.axis) offset += r * p.output_stride[d];
    rest = q;
  }
  const int64_t index = resolve_index(read_index(p.indices, p.indices64, i), p.axis_extent, p.out_of_range);
  return index < 0 ? -1 : offset + index * p.output_stride[p.axis];
}

__device__ __forceinline__ int64_t scatter_place(const ScatterNDParams& p, int64_t i) {
  const int64_t tuple = i / p.inner;
  int64_t offset = i - tuple * p.inner;
  bool inside = true;
  for (int d = 0; d < p.depth; ++d) {
    const int64_t index = resolve_index(p.indices[tuple * p.depth + d], p.extent[d], p.out_of_range);
    inside = inside && index >= 0;
    offset += index * p.stride[d];
  }
  return inside ? offset : -1;
}

}  // namespace cuvil::device
