// ConvTranspose: 1 to 3 spatial dimensions, groups, dilations, any padding, bias.
#include "ops/conv_op.h"

namespace cuvil {
namespace {

enum Input { kX, kW, kBias };

class ConvTranspose : public Op {
 public:
  explicit ConvTranspose(const NodeView& node)
      : window_(window_attributes(node)), groups_(node.get<int64_t>("group", 1)) {}

  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(kX), w = ctx.input(kW);
    const int rank = x.shape.rank();
    require(rank >= 3 && rank <= 2 + kMaxSpatial && w.shape.rank() == rank, "X of shape ", x.shape.to_string(),
            " and W of shape ", w.shape.to_string(), " are not those of 1 to 3 spatial dimensions");
    require(groups_ > 0 && x.shape[1] == w.shape[0] && x.shape[1] % groups_ == 0, "X has ", x.shape[1],
            " channels and W is ", w.shape.to_string(), ": both must agree, and be a multiple of group=", groups_);
    const std::vector<int64_t> in(x.shape.data() + 2, x.shape.data() + rank);
    const std::vector<int64_t> kernel(w.shape.data() + 2, w.shape.data() + rank);
    require(window_.kernel.empty() || window_.kernel == kernel, "kernel_shape differs from the shape of W, ",
            w.shape.to_string());
    const Window window = window_.resolve_transposed(in, kernel);
    ConvProblem p;
    p.dtype = x.dtype;
    p.transposed = true;
    p.n = x.shape[0];
    p.c = x.shape[1];
    p.k = w.shape[1] * groups_;
    p.groups = groups_;
    p.window = at_least_2d(window);
    p.tf32 = ctx.allow_tf32();
    ConvOperands o;
    o.x = x.data;
    o.w = w.data;
    if (ctx.has_input(kBias)) {
      const Tensor bias = ctx.input(kBias);
      require(bias.size() == p.k, "bias has ", bias.size(), " values for ", p.k, " output channels");
      p.bias = true;
      o.bias = bias.data;
    }
    Dims out{p.n, p.k};
    for (int i = 0; i < window.rank; ++i) out.push_back(window.out[static_cast<size_t>(i)]);
    const Tensor y = ctx.output(0, out);
    if (y.size() == 0) return;
    o.y = y.data;
    ctx.shared<ConvEngine>().run(ctx, p, o);
  }

 private:
  WindowAttributes window_;
  int64_t groups_;
};

std::string supports(const NodeView& node) { return conv_reason(node, 3); }

const Register conv_transpose(
    {.domain = "", .type = "ConvTranspose", .supports = supports, .create = make_op<ConvTranspose>});

}  // namespace
}  // namespace cuvil
