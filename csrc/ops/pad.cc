// Pad: pads and value are attributes before opset 11, host inputs after; axes from opset 18 on.
#include <cuda_fp16.h>

#include <algorithm>
#include <cstring>

#include "ops/params.h"
#include "ops/run_pad.h"

namespace cuvil {
namespace {

constexpr int kPads = 1, kValue = 2, kAxes = 3;

class Pad : public Op {
 public:
  explicit Pad(const NodeView& node)
      : mode_(plan::pad_mode(node.get<std::string>("mode", "constant"))),
        pads_(node, "pads", kPads),
        axes_(node, "axes", kAxes),
        value_(node.get<float>("value", 0)) {}

  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0);
    const plan::PadPlan plan = plan::pad(x.shape, pads_.get(ctx), axes_.get(ctx), mode_);
    const Tensor y = ctx.output(0, plan.shape);
    unsigned char value[sizeof(uint64_t)] = {};
    write_value(ctx, x.dtype, value);
    run_pad(ctx, x, y, plan, mode_, value);
  }

 private:
  // The constant's bytes. Before opset 11 it is a float attribute of a floating tensor.
  void write_value(OpContext& ctx, DType dtype, unsigned char* bytes) const {
    if (ctx.has_input(kValue)) {
      const Tensor value = ctx.input(kValue);
      if (value.size() > 0) std::memcpy(bytes, value.data, size_of(value.dtype));
    } else if (dtype == DType::kF16) {
      const __half v = __float2half_rn(value_);
      std::memcpy(bytes, &v, sizeof(v));
    } else if (dtype == DType::kF64) {
      const double v = value_;
      std::memcpy(bytes, &v, sizeof(v));
    } else {  // f32; for the other types the value is 0
      std::memcpy(bytes, &value_, std::min(sizeof(value_), size_of(dtype)));
    }
  }

  PadMode mode_;
  IntsParam pads_, axes_;
  float value_;
};

const Register pad{{.type = "Pad",
                    .since = 2,
                    .supports = supports_any_type,
                    .create = make_op<Pad>,
                    .cpu_inputs = {kPads, kValue, kAxes}}};

}  // namespace
}  // namespace cuvil
