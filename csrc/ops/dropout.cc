// Dropout at inference: the input unchanged, and a mask of ones where one is asked for. Before opset 12 the mask of
// inference is undefined; ONNX Runtime fills it with zeros, and so does this.
#include "ops/params.h"

namespace cuvil {
namespace {

constexpr int kTrainingMode = 2;

std::string supports(const NodeView& node) {
  if (node.has_input(kTrainingMode)) {
    const std::optional<Tensor> training = node.constant_input(kTrainingMode);
    if (!training) return "training_mode is not a constant; only inference is served";
    if (*training->as<bool>()) return "training_mode is true; only inference is served";
  }
  if (node.has_output(1) && node.output_dtype(1) != DType::kBool)
    return concat("the mask is ", name_of(node.output_dtype(1)), " before opset 10; bool is served");
  return supports_any_type(node);
}

class Dropout : public Op {
 public:
  explicit Dropout(const NodeView& node) : mask_(node.since_version() >= 12 ? 1 : 0) {}
  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0);
    copy_elements(ctx, x, ctx.output(0, x.shape));
    if (!ctx.has_output(1)) return;
    const Tensor mask = ctx.output(1, x.shape);
    if (mask.bytes() != 0) CUVIL_CUDA(cudaMemsetAsync(mask.data, mask_, mask.bytes(), ctx.stream()));
  }

 private:
  int mask_;
};

const Register dropout{{.type = "Dropout",
                        .supports = supports,
                        .create = make_op<Dropout>,
                        .cpu_inputs = {1, kTrainingMode},
                        .aliases = {{0, 0}}}};

}  // namespace
}  // namespace cuvil
