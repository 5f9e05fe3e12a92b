// CenterCropPad, opset 18 and later; the wanted extents are a host input.
#include "ops/params.h"
#include "ops/run_pad.h"

namespace cuvil {
namespace {

std::string supports(const NodeView& node) {
  if (std::vector<int64_t> axes; node.find("axes", &axes) && axes.empty()) return "axes is empty";
  return require_movable(node, 0);
}

class CenterCropPad : public Op {
 public:
  explicit CenterCropPad(const NodeView& node) { given_ = node.find("axes", &axes_); }

  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0);
    const std::vector<int64_t> wanted = read_ints(ctx.input(1));
    std::vector<int64_t> axes = axes_;
    if (!given_)
      for (int i = 0; i < x.shape.rank(); ++i) axes.push_back(i);
    require(wanted.size() == axes.size(), "shape has ", wanted.size(), " values for ", axes.size(), " axes");
    // The missing or surplus elements, the smaller half of them at the beginning, as pads of Pad.
    const size_t n = axes.size();
    std::vector<int64_t> pads(2 * n);
    for (size_t i = 0; i < n; ++i) {
      require(wanted[i] >= 0, "shape holds ", wanted[i]);
      const int64_t more = wanted[i] - x.shape[normalize_axis(axes[i], x.shape.rank())];
      pads[i] = more / 2;  // towards 0
      pads[n + i] = more - more / 2;
    }
    const plan::PadPlan plan = plan::pad(x.shape, pads, axes, PadMode::kConstant);
    const Tensor y = ctx.output(0, plan.shape);
    const unsigned char zero[sizeof(uint64_t)] = {};
    run_pad(ctx, x, y, plan, PadMode::kConstant, zero);
  }

 private:
  std::vector<int64_t> axes_;
  bool given_;
};

const Register center_crop_pad{
    {.type = "CenterCropPad", .since = 18, .supports = supports, .create = make_op<CenterCropPad>, .cpu_inputs = {1}}};

}  // namespace
}  // namespace cuvil
