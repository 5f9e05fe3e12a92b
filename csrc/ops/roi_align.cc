// RoiAlign, opset 10 and later.
#include "kernels/roi_align.cuh"

#include "ops/index_guard.h"
#include "ops/op.h"

namespace cuvil {
namespace {

std::string coordinates(const NodeView& node) {
  return node.get<std::string>("coordinate_transformation_mode",
                               node.since_version() < 16 ? "output_half_pixel" : "half_pixel");
}

std::string supports(const NodeView& node) {
  const DType t = node.input_dtype(0);
  if (!is_float(t)) return concat("input 0 is ", name_of(t), "; f32, f16, bf16 or f64 is required");
  if (node.input_dtype(1) != t) return concat("inputs 0 and 1 are ", name_of(t), " and ", name_of(node.input_dtype(1)));
  if (node.input_dtype(2) != DType::kI64)
    return concat("input 2 is ", name_of(node.input_dtype(2)), "; i64 is required");
  const std::string mode = node.get<std::string>("mode", "avg"), how = coordinates(node);
  if (mode != "avg" && mode != "max") return concat("mode is '", mode, "'");
  if (how != "half_pixel" && how != "output_half_pixel") return concat("coordinate_transformation_mode is '", how, "'");
  for (const char* name : {"output_height", "output_width"})
    if (const int64_t v = node.get<int64_t>(name, 1); v <= 0 || v > INT_MAX) return concat(name, " is ", v);
  if (const int64_t v = node.get<int64_t>("sampling_ratio", 0); v < 0 || v > INT_MAX)
    return concat("sampling_ratio is ", v);
  return "";
}

class RoiAlign : public Op {
 public:
  explicit RoiAlign(const NodeView& node) {
    p_.out_height = static_cast<int>(node.get<int64_t>("output_height", 1));
    p_.out_width = static_cast<int>(node.get<int64_t>("output_width", 1));
    p_.sampling_ratio = static_cast<int>(node.get<int64_t>("sampling_ratio", 0));
    p_.spatial_scale = node.get<float>("spatial_scale", 1.0f);
    p_.max = node.get<std::string>("mode", "avg") == "max";
    p_.half_pixel = coordinates(node) == "half_pixel";
  }

  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0), rois = ctx.input(1), batch = ctx.input(2);
    require(x.shape.rank() == 4, "X has shape ", x.shape.to_string(), "; [N, C, H, W] is required");
    const int64_t count = rois.shape.rank() == 2 ? rois.shape[0] : -1;
    require(rois.shape == Dims{count, 4} && batch.shape == Dims{count}, "rois and batch_indices have shapes ",
            rois.shape.to_string(), " and ", batch.shape.to_string(), "; [R, 4] and [R] are required");
    const Tensor y = ctx.output(0, Dims{count, x.shape[1], p_.out_height, p_.out_width});
    if (y.size() == 0) return;
    require(x.shape[2] > 0 && x.shape[2] < INT_MAX && x.shape[3] > 0 && x.shape[3] < INT_MAX, "X has shape ",
            x.shape.to_string(), "; 1 to 2^31 - 2 rows and columns are served");
    RoiAlignParams p = p_;
    p.x = x.data, p.rois = rois.data, p.batch = batch.as<int64_t>(), p.y = y.data;
    p.dtype = x.dtype;
    p.n = x.shape[0], p.c = x.shape[1], p.count = count;
    p.height = static_cast<int>(x.shape[2]), p.width = static_cast<int>(x.shape[3]);
    p.out_of_range = guard_.arm();
    CUVIL_CUDA(launch_roi_align(p, ctx.stream()));
  }

 private:
  RoiAlignParams p_;
  IndexGuard guard_;
};

const Register roi_align{{.type = "RoiAlign", .since = 10, .supports = supports, .create = make_op<RoiAlign>}};

}  // namespace
}  // namespace cuvil
