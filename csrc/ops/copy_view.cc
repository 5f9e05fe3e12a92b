#include "ops/copy_view.h"

#include <algorithm>

#include "kernels/strided_copy.cuh"
#include "kernels/transpose.cuh"

namespace cuvil {
namespace {

// Below these extents most of a tile would be padding.
constexpr int64_t kMinTiledExtent = 8, kMinTiledArea = 256;

bool worth_tiling(const plan::View& v, int a) {
  const int64_t ea = v.extent[static_cast<size_t>(a)], eb = v.extent[static_cast<size_t>(v.rank - 1)];
  return ea >= kMinTiledExtent && eb >= kMinTiledExtent && ea * eb >= kMinTiledArea && v.rank <= 16;
}

cudaError_t transpose(const void* input, void* output, int size, const plan::View& v, int a, cudaStream_t stream) {
  TransposeParams p{};
  p.input = input;
  p.output = output;
  p.element_size = size;
  int64_t out_stride = 1;
  for (int d = v.rank - 1; d >= 0; --d) {
    const size_t i = static_cast<size_t>(d);
    if (d == v.rank - 1) {
      p.extent_b = v.extent[i];
      p.in_stride_b = v.stride[i];
    } else if (d == a) {
      p.extent_a = v.extent[i];
      p.out_stride_a = out_stride;
    } else {
      p.batch_extent[p.batch_rank] = v.extent[i];
      p.batch_in_stride[p.batch_rank] = v.stride[i];
      p.batch_out_stride[p.batch_rank++] = out_stride;
    }
    out_stride *= v.extent[i];
  }
  // The innermost batch dimension last, so that neighbouring blocks read neighbouring memory.
  std::reverse(p.batch_extent, p.batch_extent + p.batch_rank);
  std::reverse(p.batch_in_stride, p.batch_in_stride + p.batch_rank);
  std::reverse(p.batch_out_stride, p.batch_out_stride + p.batch_rank);
  return launch_transpose(p, stream);
}

}  // namespace

void copy_view(OpContext& ctx, const void* input, void* output, DType dtype, const plan::View& view) {
  if (view.size() == 0) return;
  const int size = static_cast<int>(size_of(dtype));
  plan::View v = plan::collapse(view);
  if (plan::is_contiguous(v)) {
    const char* from = static_cast<const char*>(input) + v.offset * size;
    if (from == output) return;
    CUVIL_CUDA(
        cudaMemcpyAsync(output, from, static_cast<size_t>(v.extent[0] * size), cudaMemcpyDeviceToDevice, ctx.stream()));
    return;
  }
  const int a = plan::transposed_dim(v);
  if (a >= 0 && worth_tiling(v, a)) {
    const char* from = static_cast<const char*>(input) + v.offset * size;
    CUVIL_CUDA(transpose(from, output, size, v, a, ctx.stream()));
    return;
  }
  const int wide = plan::widen(&v, size, reinterpret_cast<uintptr_t>(input), reinterpret_cast<uintptr_t>(output));
  StridedCopyParams p{};
  p.input = static_cast<const char*>(input) + v.offset * wide;
  p.output = output;
  p.element_size = wide;
  p.rank = v.rank;
  std::copy_n(v.extent.begin(), v.rank, p.extent);
  std::copy_n(v.stride.begin(), v.rank, p.stride);
  CUVIL_CUDA(launch_strided_copy(p, ctx.stream()));
}

}  // namespace cuvil
