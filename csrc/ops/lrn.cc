// LRN, opset 1 and later.
#include "kernels/lrn.cuh"

#include "ops/op.h"

namespace cuvil {
namespace {

std::string supports(const NodeView& node) {
  const DType t = node.input_dtype(0);
  if (!is_float(t)) return concat("input 0 is ", name_of(t), "; f32, f16, bf16 or f64 is required");
  if (const int64_t size = node.get<int64_t>("size", 0); size <= 0) return concat("size is ", size);
  return "";
}

class Lrn : public Op {
 public:
  explicit Lrn(const NodeView& node) {
    const int64_t size = node.get<int64_t>("size", 1);
    p_.before = (size - 1) / 2;  // a window of an even size reaches farther behind
    p_.after = size - 1 - p_.before;
    p_.alpha = static_cast<double>(node.get<float>("alpha", 1e-4f)) / static_cast<double>(size);
    p_.beta = node.get<float>("beta", 0.75f);
    p_.bias = node.get<float>("bias", 1.0f);
  }

  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0);
    const int rank = x.shape.rank();
    require(rank >= 2, "X has shape ", x.shape.to_string(), "; [N, C, ...] is required");
    LrnParams p = p_;
    p.x = x.data;
    p.y = ctx.output(0, x.shape).data;
    p.dtype = x.dtype;
    p.batch = x.shape[0];
    p.channels = x.shape[1];
    p.inner = x.shape.product(2, rank);
    CUVIL_CUDA(launch_lrn(p, ctx.stream()));
  }

 private:
  LrnParams p_;
};

const Register lrn{{.type = "LRN", .supports = supports, .create = make_op<Lrn>}};

}  // namespace
}  // namespace cuvil
