#include <math_constants.h>

#include "device/index.cuh"
#include "kernels/nms.cuh"

namespace cuvil {
namespace {

constexpr int kThreads = 512;

struct Box {
  float y0, x0, y1, x1;  // y0 <= y1, x0 <= x1
};

__device__ Box read_box(const float* p, bool centered) {
  if (centered) {
    const float half_width = p[2] / 2, half_height = p[3] / 2;
    return {p[1] - half_height, p[0] - half_width, p[1] + half_height, p[0] + half_width};
  }
  return {fminf(p[0], p[2]), fminf(p[1], p[3]), fmaxf(p[0], p[2]), fmaxf(p[1], p[3])};
}

// Without contraction to FMA, so that an overlap exactly at the threshold is decided as on the CPU.
__device__ bool overlaps(const Box& a, const Box& b, float threshold) {
  const float height = fminf(a.y1, b.y1) - fmaxf(a.y0, b.y0), width = fminf(a.x1, b.x1) - fmaxf(a.x0, b.x0);
  if (height <= 0 || width <= 0) return false;
  const float both = __fmul_rn(height, width);
  const float area_a = __fmul_rn(a.y1 - a.y0, a.x1 - a.x0), area_b = __fmul_rn(b.y1 - b.y0, b.x1 - b.x0);
  if (area_a <= 0 || area_b <= 0) return false;
  return both / (area_a + area_b - both) > threshold;
}

struct Best {
  float score;
  int64_t index;
};

__device__ Best better(const Best& a, const Best& b) {
  if (a.score != b.score) return a.score > b.score ? a : b;
  return a.index <= b.index ? a : b;
}

__device__ Best warp_best(Best v) {
  for (int offset = 16; offset > 0; offset /= 2)
    v = better(v, {__shfl_down_sync(0xFFFFFFFFu, v.score, offset), __shfl_down_sync(0xFFFFFFFFu, v.index, offset)});
  return v;
}

// A block a group: pick the best box that is left, drop what overlaps it while looking for the next best.
__global__ void __launch_bounds__(kThreads) nms(NmsParams p) {
  __shared__ Best warps[kThreads / 32];
  __shared__ Best chosen;
  const int64_t group = blockIdx.x;
  const float* boxes = p.boxes + group / p.classes * p.n * 4;
  const float* scores = p.scores + group * p.n;
  float* alive = p.alive + group * p.n;
  const float dropped = -CUDART_INF_F;
  Box last{};
  int64_t count = 0;
  for (;; ++count) {
    Best best{dropped, INT64_MAX};
    for (int64_t i = threadIdx.x; i < p.n; i += kThreads) {
      float score;
      if (count == 0) {
        score = scores[i];
        // The comparisons are false for NaN.
        if (!(p.has_score_threshold ? score > p.score_threshold : score > dropped)) score = dropped;
        alive[i] = score;
      } else {
        score = alive[i];
        if (score != dropped &&
            (i == chosen.index || overlaps(last, read_box(boxes + 4 * i, p.centered), p.iou_threshold)))
          alive[i] = score = dropped;
      }
      if (score != dropped) best = better(best, {score, i});
    }
    best = warp_best(best);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = best;
    __syncthreads();  // also: everybody has read `chosen` of the round before
    if (threadIdx.x < 32) {
      best = threadIdx.x < kThreads / 32 ? warps[threadIdx.x] : Best{dropped, INT64_MAX};
      best = warp_best(best);
      if (threadIdx.x == 0) chosen = best;
    }
    __syncthreads();
    if (chosen.score == dropped || count == p.most) break;
    if (threadIdx.x == 0) p.picked[group * p.most + count] = chosen.index;
    last = read_box(boxes + 4 * chosen.index, p.centered);
  }
  if (threadIdx.x == 0) p.counts[group] = count;
}

__global__ void __launch_bounds__(kThreads) nms_gather(NmsGatherParams p) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= p.groups * p.most) return;
  const int64_t group = i / p.most, place = i - group * p.most;
  if (place >= p.counts[group]) return;
  int64_t* y = p.y + 3 * (p.starts[group] + place);
  y[0] = group / p.classes;
  y[1] = group % p.classes;
  y[2] = p.picked[i];
}

}  // namespace

cudaError_t launch_nms(const NmsParams& p, cudaStream_t stream) {
  const int64_t groups = p.batch * p.classes;
  if (groups == 0) return cudaSuccess;
  if (groups > device::kMaxIndex32) return cudaErrorInvalidValue;
  nms<<<static_cast<unsigned>(groups), kThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

cudaError_t launch_nms_gather(const NmsGatherParams& p, cudaStream_t stream) {
  if (p.groups * p.most == 0) return cudaSuccess;
  nms_gather<<<device::blocks_for(p.groups * p.most, kThreads), kThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace cuvil
