// NonMaxSuppression: the limits are host inputs, how many boxes are left decides the size of the output.
#include <algorithm>
#include <numeric>

#include "kernels/nms.cuh"
#include "ops/data_size.h"
#include "ops/params.h"

namespace cuvil {
namespace {

float read_float(const Tensor& t) {
  require(t.size() == 1, "a threshold holds ", t.size(), " values; one is required");
  return t.as<float>()[0];
}

class NonMaxSuppression : public Op {
 public:
  explicit NonMaxSuppression(const NodeView& node) : centered_(node.get<int64_t>("center_point_box", 0) != 0) {}

  void compute(OpContext& ctx) override {
    const Tensor boxes = ctx.input(0), scores = ctx.input(1);
    require(boxes.shape.rank() == 3 && boxes.shape[2] == 4, "input 0 has the shape ", boxes.shape.to_string(),
            "; [batch, boxes, 4] is required");
    require(scores.shape.rank() == 3 && scores.shape[0] == boxes.shape[0] && scores.shape[2] == boxes.shape[1],
            "input 1 has the shape ", scores.shape.to_string(), "; [", boxes.shape[0], ", classes, ", boxes.shape[1],
            "] is required");
    NmsParams p{.boxes = boxes.as<float>(),
                .scores = scores.as<float>(),
                .batch = scores.shape[0],
                .classes = scores.shape[1],
                .n = scores.shape[2],
                .centered = centered_};
    const std::vector<int64_t> most = ctx.has_input(2) ? read_ints(ctx.input(2)) : std::vector<int64_t>{0};
    require(most.size() == 1, "input 2 holds ", most.size(), " values; one is required");
    p.most = std::clamp<int64_t>(most[0], 0, p.n);
    if (ctx.has_input(3)) p.iou_threshold = read_float(ctx.input(3));
    require(p.iou_threshold >= 0 && p.iou_threshold <= 1, "input 3, the overlap allowed, is ", p.iou_threshold,
            "; a number in [0, 1] is required");
    p.has_score_threshold = ctx.has_input(4);
    if (p.has_score_threshold) p.score_threshold = read_float(ctx.input(4));
    const int64_t groups = p.batch * p.classes;
    if (groups * p.most == 0) {
      ctx.output(0, {0, 3});
      return;
    }
    p.alive = static_cast<float*>(ctx.scratch(static_cast<size_t>(groups * p.n) * sizeof(float)));
    p.picked = static_cast<int64_t*>(ctx.scratch(static_cast<size_t>(groups * p.most) * sizeof(int64_t)));
    p.counts = static_cast<int64_t*>(ctx.scratch(static_cast<size_t>(groups) * sizeof(int64_t)));
    CUVIL_CUDA(launch_nms(p, ctx.stream()));
    gather(ctx, p, groups);
  }

 private:
  static void gather(OpContext& ctx, const NmsParams& p, int64_t groups) {
    std::vector<int64_t> starts = read_sizes(ctx, p.counts, static_cast<size_t>(groups));
    const int64_t total = std::accumulate(starts.begin(), starts.end(), int64_t{0});
    std::exclusive_scan(starts.begin(), starts.end(), starts.begin(), int64_t{0});
    const size_t bytes = starts.size() * sizeof(int64_t);
    auto* device_starts = static_cast<int64_t*>(ctx.scratch(bytes));
    // From pageable memory, which CUDA reads before the call returns.
    CUVIL_CUDA(cudaMemcpyAsync(device_starts, starts.data(), bytes, cudaMemcpyHostToDevice, ctx.stream()));
    const Tensor y = ctx.output(0, {total, 3});
    CUVIL_CUDA(launch_nms_gather({.picked = p.picked,
                                  .counts = p.counts,
                                  .starts = device_starts,
                                  .y = y.as<int64_t>(),
                                  .groups = groups,
                                  .classes = p.classes,
                                  .most = p.most},
                                 ctx.stream()));
  }

  bool centered_;
};

const Register non_max_suppression{OpEntry{.type = "NonMaxSuppression",
                                           .since = 10,
                                           .supports = [](const NodeView&) { return std::string(); },
                                           .create = make_op<NonMaxSuppression>,
                                           .cpu_inputs = {2, 3, 4}}};

}  // namespace
}  // namespace cuvil
