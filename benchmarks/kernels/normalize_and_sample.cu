// Bandwidth of normalizations, samplers and pools against the card's own copy, from the launchers alone.
//
// Build and run from the repository's root:
//   nvcc -O3 -std=c++20 -arch=native -Icsrc -I. benchmarks/kernels/normalize_and_sample.cu
//   csrc/kernels/{lrn,lp_norm,mean_variance,grid_sample,max_pool_indices}.cu
//        csrc/kernels/{reverse_sequence,col2im,strided_product}.cu -o /tmp/normalize && /tmp/normalize
#include "benchmarks/kernels/measure.h"
#include "kernels/col2im.cuh"
#include "kernels/grid_sample.cuh"
#include "kernels/lp_norm.cuh"
#include "kernels/lrn.cuh"
#include "kernels/mean_variance.cuh"
#include "kernels/pool.cuh"
#include "kernels/reverse_sequence.cuh"
#include "kernels/strided_product.cuh"

namespace {

using namespace cuvil;

double bytes_of(DType dtype, double elements) { return elements * static_cast<double>(size_of(dtype)); }

void lrn(const char* name, DType dtype, int64_t n, int64_t c, int64_t inner, int64_t size) {
  const LrnParams p{.x = source,
                    .y = target,
                    .dtype = dtype,
                    .batch = n,
                    .channels = c,
                    .inner = inner,
                    .before = (size - 1) / 2,
                    .after = size / 2,
                    .alpha = 1e-4 / static_cast<double>(size),
                    .beta = 0.75,
                    .bias = 1};
  measure(name, bytes_of(dtype, 2.0 * static_cast<double>(n * c * inner)), [&] { CUVIL_CUDA(launch_lrn(p, nullptr)); });
}

void lp_norm(const char* name, DType dtype, int64_t outer, int64_t n, int64_t inner) {
  const LpNormParams p{.x = source, .y = target, .dtype = dtype, .outer = outer, .n = n, .inner = inner};
  measure(name, bytes_of(dtype, 2.0 * static_cast<double>(outer * n * inner)),
          [&] { CUVIL_CUDA(launch_lp_norm(p, nullptr)); });
}

void mean_variance(const char* name, DType dtype, int64_t segments, int64_t rows, int64_t width) {
  const MeanVarianceParams p{
      .x = source, .y = target, .dtype = dtype, .segments = segments, .rows = rows, .width = width};
  measure(name, bytes_of(dtype, 2.0 * static_cast<double>(segments * rows * width)),
          [&] { CUVIL_CUDA(launch_mean_variance(p, nullptr)); });
}

// The grid is all zeros: every position reads the middle of its image, so that the rate is that of the results.
void grid_sample(const char* name, DType dtype, int64_t n, int64_t c, int size, GridSampleMode mode) {
  GridSampleParams p;
  p.x = source, p.grid = scratch, p.y = target;
  p.dtype = dtype, p.grid_dtype = DType::kF32;
  p.n = n, p.c = c, p.positions = int64_t{size} * size;
  p.in[1] = p.in[2] = size;
  p.mode = mode;
  measure(name, bytes_of(dtype, static_cast<double>(n * c * p.positions)) + 8.0 * static_cast<double>(n * p.positions),
          [&] { CUVIL_CUDA(launch_grid_sample(p, nullptr)); });
}

void max_pool(const char* name, DType dtype, int64_t planes, int size) {
  PoolParams p;
  p.x = source, p.y = target;
  p.dtype = dtype;
  p.max = true;
  p.n = 1, p.c = planes;
  p.in[1] = p.in[2] = size;
  p.out[1] = p.out[2] = size / 2;
  p.kernel[1] = p.kernel[2] = p.stride[1] = p.stride[2] = 2;
  const double in = static_cast<double>(planes) * size * size;
  measure(name, bytes_of(dtype, 1.25 * in) + 8 * in / 4,
          [&] { CUVIL_CUDA(launch_max_pool_indices(p, reinterpret_cast<int64_t*>(scratch), false, nullptr)); });
}

}  // namespace

int main() {
  start();
  lrn("LRN f32 of 5, 64x96x55x55 (AlexNet)", DType::kF32, 64, 96, 55 * 55, 5);
  lrn("LRN f32 of 5, 64x64x56x56", DType::kF32, 64, 64, 56 * 56, 5);
  lrn("LRN f32 of 5, 1x192x56x56 (GoogLeNet, one image)", DType::kF32, 1, 192, 56 * 56, 5);
  lrn("LRN f16 of 5, 128x96x56x56", DType::kF16, 128, 96, 56 * 56, 5);
  lrn("LRN f32 of 9, 64x64x56x56", DType::kF32, 64, 64, 56 * 56, 9);

  lp_norm("L2 of rows f32 65536x512", DType::kF32, 65536, 512, 1);
  lp_norm("L2 of rows f16 65536x512", DType::kF16, 65536, 512, 1);
  lp_norm("L2 of channels f32 64x512x38x38 (SSD)", DType::kF32, 64, 512, 38 * 38);
  lp_norm("L2 of channels f16 64x512x38x38", DType::kF16, 64, 512, 38 * 38);

  mean_variance("mean-variance f32, 16x64x112x112 over N, H, W", DType::kF32, 16, 64, 112 * 112);
  mean_variance("mean-variance f32, 16x64x112x112 over H, W", DType::kF32, 1, 16 * 64, 112 * 112);
  mean_variance("mean-variance f16, 64x256x56x56 over H, W", DType::kF16, 1, 64 * 256, 56 * 56);

  grid_sample("GridSample nearest f32 8x32x256x256", DType::kF32, 8, 32, 256, GridSampleMode::kNearest);
  grid_sample("GridSample linear f32 8x32x256x256", DType::kF32, 8, 32, 256, GridSampleMode::kLinear);
  grid_sample("GridSample cubic f32 8x32x256x256", DType::kF32, 8, 32, 256, GridSampleMode::kCubic);
  grid_sample("GridSample linear f16 8x64x256x256", DType::kF16, 8, 64, 256, GridSampleMode::kLinear);

  max_pool("MaxPool 2x2 with indices f32 64x64x112x112", DType::kF32, 64 * 64, 112);

  const ReverseSequenceParams reverse{.x = source,
                                      .y = target,
                                      .lengths = reinterpret_cast<const int64_t*>(scratch),
                                      .element_size = 16,
                                      .time = 512,
                                      .batch = 64,
                                      .inner = 256,
                                      .time_first = true,
                                      .out_of_range = nullptr};
  measure("ReverseSequence of 4 KiB steps, 512x64", 2.0 * 512 * 64 * 4096,
          [&] { CUVIL_CUDA(launch_reverse_sequence(reverse, nullptr)); });

  Col2ImParams columns;
  columns.x = source, columns.y = target;
  columns.dtype = DType::kF32;
  columns.planes = 512;
  columns.image[1] = columns.image[2] = 128;
  columns.block[1] = columns.block[2] = 3;
  columns.count[1] = columns.count[2] = 126;
  measure("Col2Im f32 of 3x3, 512x128x128", 4.0 * 512 * (9.0 * 126 * 126 + 128 * 128),
          [&] { CUVIL_CUDA(launch_col2im(columns, nullptr)); });

  StridedProductParams product{.a = source, .b = scratch, .y = target, .dtype = DType::kF32, .rank = 1};
  product.extent[0] = 1 << 26;
  product.step_a[0] = product.step_b[0] = 1;
  measure("product of views f32, 64 Mi elements", 3.0 * 4 * (1 << 26),
          [&] { CUVIL_CUDA(launch_strided_product(product, nullptr)); });
}
