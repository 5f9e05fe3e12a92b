// Bandwidth of the data-movement and reduction kernels against the card's own copy, from the launchers alone.
//
// Build and run from the repository's root:
//   nvcc -O3 -std=c++20 -arch=native -Icsrc -I. benchmarks/kernels/move_and_reduce.cu
//   csrc/kernels/{transpose,strided_copy}.cu
//        csrc/kernels/{segments,gather,reduce,reduce_sum,reduce_extrema,reduce_prod,reduce_lse}.cu
//        csrc/plan/{reduce,shapes,strided}.cc -o /tmp/move_and_reduce && /tmp/move_and_reduce
#include <vector>

#include "benchmarks/kernels/measure.h"
#include "kernels/gather.cuh"
#include "kernels/reduce.cuh"
#include "kernels/segments.cuh"
#include "kernels/strided_copy.cuh"
#include "kernels/transpose.cuh"
#include "plan/reduce.h"

namespace {

using namespace cuvil;

// [batch, b, a] -> [batch, a, b]
void transpose(const char* name, int size, int64_t batch, int64_t b, int64_t a) {
  TransposeParams p{};
  p.input = source;
  p.output = target;
  p.element_size = size;
  p.extent_a = a;
  p.extent_b = b;
  p.in_stride_b = a;
  p.out_stride_a = b;
  p.batch_rank = 1;
  p.batch_extent[0] = batch;
  p.batch_in_stride[0] = p.batch_out_stride[0] = a * b;
  measure(name, 2.0 * static_cast<double>(size * batch * a * b), [&] { CUVIL_CUDA(launch_transpose(p, nullptr)); });
}

void strided(const char* name, int size, std::vector<int64_t> extent, std::vector<int64_t> stride, double read) {
  StridedCopyParams p{};
  p.input = source;
  p.output = target;
  p.element_size = size;
  p.rank = static_cast<int>(extent.size());
  double elements = 1;
  for (size_t i = 0; i < extent.size(); ++i) {
    p.extent[i] = extent[i];
    p.stride[i] = stride[i];
    elements *= static_cast<double>(extent[i]);
  }
  measure(name, elements * size * (1 + read), [&] { CUVIL_CUDA(launch_strided_copy(p, nullptr)); });
}

void reduce(const char* name, DType dtype, const Dims& shape, const std::vector<int64_t>& axes) {
  cudaDeviceProp device;
  CUVIL_CUDA(cudaGetDeviceProperties(&device, 0));
  const plan::ReducePlan plan = plan::reduce(shape, axes, true, false);
  measure(name, static_cast<double>(shape.size()) * static_cast<double>(size_of(dtype)), [&] {
    ReduceParams p{};
    p.x = source;
    p.dtype = dtype;
    p.kind = Reduction::kMean;
    p.count = plan.count;
    char* next = scratch;
    const auto pass = [&](const plan::ReducePass& s, int64_t parts, bool last) {
      p.outer = s.outer, p.reduce = s.reduce, p.inner = s.inner, p.parts = parts;
      p.y_partial = !last;
      p.y = last ? target : next;
      next += kArena / 8;
      CUVIL_CUDA(launch_reduce(p, nullptr));
      p.x = p.y;
      p.x_partial = true;
    };
    for (size_t i = 0; i < plan.passes.size(); ++i) {
      plan::ReducePass s = plan.passes[i];
      const int64_t parts =
          plan::reduce_parts(s, 16 / static_cast<int64_t>(size_of(dtype)), device.multiProcessorCount);
      if (parts > 1) {
        pass(s, parts, false);
        s.reduce = parts;
      }
      pass(s, 1, i + 1 == plan.passes.size());
    }
  });
}

}  // namespace

int main() {
  start();

  transpose("NCHW->NHWC f16 64x256x56x56", 2, 64, 256, 56 * 56);
  transpose("NHWC->NCHW f16 64x56x56x256", 2, 64, 56 * 56, 256);
  transpose("NCHW->NHWC f16 64x64x112x112", 2, 64, 64, 112 * 112);
  transpose("NHWC->NCHW f16 64x112x112x32", 2, 64, 112 * 112, 32);
  transpose("NCHW->NHWC f16 256x24x112x112", 2, 256, 24, 112 * 112);
  transpose("NCHW->NHWC f16 512x2048x7x7", 2, 512, 2048, 49);
  transpose("NCHW->NHWC f32 64x128x56x56", 4, 64, 128, 56 * 56);
  transpose("NHWC->NCHW f32 64x56x56x128", 4, 64, 56 * 56, 128);
  transpose("matrix f16 8192x8192", 2, 1, 8192, 8192);
  transpose("matrix u8 16384x8192", 1, 1, 16384, 8192);
  transpose("matrix f64 4096x8192", 8, 1, 4096, 8192);
  // Heads of attention: [32, 512, 12, 64] f16 with dimensions 1 and 2 swapped, 8 groups of 16 bytes a row.
  strided("swap of outer dimensions f16 128x512x12x64", 16, {128, 12, 512, 8}, {512 * 12 * 8, 8, 12 * 8, 1}, 1);
  strided("NHWC->NCHW f16, 3 channels, 512x224x224", 2, {512, 3, 224 * 224}, {3 * 224 * 224, 1, 3}, 1);
  strided("expand f16, the last dimension 1 -> 1024", 2, {65536, 1024}, {1, 0}, 0);
  strided("expand f16, rows repeated", 16, {1024, 8192}, {0, 1}, 0);

  SegmentsParams s{};
  s.count = 4;
  s.rows = 4096;
  for (int i = 0; i < 4; ++i) s.segment[i] = {source + (i << 26), target + i * 8192, 8192, 32768, 8192};
  measure("concat of 4, rows of 8 KiB", 2.0 * 4 * 4096 * 8192, [&] { CUVIL_CUDA(launch_segments(s, nullptr)); });

  GatherParams g{};
  g.data = source;
  g.indices = scratch;
  g.output = target;
  g.element_size = 2;
  g.indices64 = true;
  g.outer = 1;
  g.axis = 30522;
  g.count = 65536;
  g.inner = 768;
  std::vector<int64_t> indices(65536);
  for (size_t i = 0; i < indices.size(); ++i) indices[i] = static_cast<int64_t>(i * 7919 % 30522);
  CUVIL_CUDA(cudaMemcpy(scratch, indices.data(), indices.size() * 8, cudaMemcpyHostToDevice));
  measure("embedding f16 30522x768, 65536 tokens", 2.0 * 65536 * 768 * 2,
          [&] { CUVIL_CUDA(launch_gather(g, nullptr)); });

  reduce("mean f32 of all 64 Mi", DType::kF32, {1 << 26}, {0});
  reduce("mean f16 of all 128 Mi", DType::kF16, {1 << 27}, {0});
  reduce("mean f16 rows 65536x1024", DType::kF16, {65536, 1024}, {1});
  reduce("mean f16 rows 16384x4096", DType::kF16, {16384, 4096}, {1});
  reduce("mean f16 rows 1048576x64", DType::kF16, {1 << 20, 64}, {1});
  reduce("mean f32 rows 65536x768", DType::kF32, {65536, 768}, {1});
  reduce("global average f16 512x2048x7x7", DType::kF16, {512, 2048, 7, 7}, {2, 3});
  reduce("global average f16 NHWC 512x7x7x2048", DType::kF16, {512, 7, 7, 2048}, {1, 2});
  reduce("mean f32 columns 65536x1024", DType::kF32, {65536, 1024}, {0});
  reduce("mean f16 columns 65536x1024", DType::kF16, {65536, 1024}, {0});
  reduce("mean f32 middle 128x512x768", DType::kF32, {128, 512, 768}, {1});
  reduce("mean f32 channels 64x256x56x56", DType::kF32, {64, 256, 56, 56}, {0, 2, 3});
  return 0;
}
