#include "ops/conv_op.h"

#include "kernels/conv_layout.cuh"

namespace cuvil {
bool ConvOp::needs_packing(const Dims& w) const {
  // With one input channel a group, or one kernel position, both orders are the same bytes.
  return channels_last_ && !weights_last_ && w[1] != 1 && w.product(2, w.rank()) != 1;
}

void ConvOp::pack(const Tensor& w, void* out, cudaStream_t stream) {
  ChannelsLastParams p;
  p.in = w.data;
  p.out = out;
  p.element = size_of(w.dtype);
  p.outer = w.shape[0];
  p.channels = w.shape[1];
  p.inner = w.shape.product(2, w.shape.rank());
  CUVIL_CUDA(launch_channels_last(p, stream));
}

bool ConvOp::prepack(int input, const Tensor& weight, cudaStream_t stream) {
  if (input != kW || weight.shape.rank() < 3 || !needs_packing(weight.shape)) return false;
  packed_ = DeviceBuffer(weight.bytes());
  packed_shape_ = weight.shape;
  pack(weight, packed_.get(), stream);
  return true;
}

const void* ConvOp::weights(OpContext& ctx, Dims* shape) const {
  if (packed_) {
    *shape = packed_shape_;
    return packed_.get();
  }
  const Tensor w = ctx.input(kW);
  *shape = w.shape;
  if (weights_last_ && w.shape.rank() >= 3) {  // stored as the engine wants it, described as ONNX does
    *shape = {w.shape[0], w.shape[w.shape.rank() - 1]};
    for (int i = 1; i < w.shape.rank() - 1; ++i) shape->push_back(w.shape[i]);
    return w.data;
  }
  if (w.shape.rank() < 3 || !needs_packing(w.shape)) return w.data;
  void* packed = ctx.scratch(w.bytes());
  pack(w, packed, ctx.stream());
  return packed;
}

void ConvOp::compute(OpContext& ctx) {
  const Tensor x = ctx.input(kX);
  Dims w;
  ConvOperands o;
  o.x = x.data;
  o.w = weights(ctx, &w);
  const int rank = x.shape.rank();
  require(rank >= 3 && rank <= 2 + kMaxSpatial && w.rank() == rank, "X of shape ", x.shape.to_string(),
          " and W of shape ", w.to_string(), " are not those of a convolution of 1 to 3 spatial dimensions");
  const int first_spatial = channels_last_ ? 1 : 2;
  const std::vector<int64_t> in(x.shape.data() + first_spatial, x.shape.data() + first_spatial + rank - 2);
  const std::vector<int64_t> kernel(w.data() + 2, w.data() + rank);
  require(window_.kernel.empty() || window_.kernel == kernel, "kernel_shape differs from the shape of W, ",
          w.to_string());
  const Window window = window_.resolve(in, kernel);

  ConvProblem p;
  p.dtype = x.dtype;
  p.channels_last = channels_last_;
  p.n = x.shape[0];
  p.c = x.shape[channels_last_ ? rank - 1 : 1];
  p.k = w[0];
  p.groups = groups_;
  require(groups_ > 0 && p.c == w[1] * groups_ && p.k % groups_ == 0, "X has ", p.c, " channels and W is ",
          w.to_string(), ": with group=", groups_, " X needs ", w[1] * groups_, " channels and W a multiple of ",
          groups_, " filters");
  p.window = at_least_2d(window);
  p.activation = activation_.kind;
  p.activation_a = activation_.a, p.activation_b = activation_.b;
  p.tf32 = ctx.allow_tf32();

  Dims out{p.n};
  if (!channels_last_) out.push_back(p.k);
  for (int i = 0; i < window.rank; ++i) out.push_back(window.out[static_cast<size_t>(i)]);
  if (channels_last_) out.push_back(p.k);
  if (ctx.has_input(kBias)) {
    const Tensor bias = ctx.input(kBias);
    require(bias.size() == p.k, "bias has ", bias.size(), " values for ", p.k, " filters");
    p.bias = true;
    o.bias = bias.data;
  }
  if (ctx.has_input(kZ)) {
    const Tensor z = ctx.input(kZ);
    require(z.shape == out, "Z has shape ", z.shape.to_string(), ", the convolution ", out.to_string());
    p.z = true;
    o.z = z.data;
  }
  const Tensor y = ctx.output(0, out);
  if (y.size() == 0) return;
  o.y = y.data;
  ctx.shared<ConvEngine>().run(ctx, p, o);
}

std::string conv_reason(const NodeView& node, int num_inputs) {
  const DType dtype = node.input_dtype(0);
  if (!is_float(dtype)) return concat("input 0 is ", name_of(dtype), "; f32, f16, bf16 and f64 are served");
  for (int i = 1; i < num_inputs; ++i)
    if (node.has_input(i) && node.input_dtype(i) != dtype)
      return concat("input ", i, " is ", name_of(node.input_dtype(i)), ", input 0 ", name_of(dtype));
  AutoPad ignored;
  if (std::string reason = parse_auto_pad(node.get<std::string>("auto_pad", ""), &ignored); !reason.empty())
    return reason;
  for (const int64_t pad : node.get<std::vector<int64_t>>("pads", {}))
    if (pad < 0) return "negative pads are not supported";
  const auto x = node.input_shape(0);
  if (x && (x->rank() < 3 || x->rank() > 2 + kMaxSpatial))
    return concat("X has rank ", x->rank(), "; 1 to 3 spatial dimensions are served");
  return "";
}

}  // namespace cuvil
