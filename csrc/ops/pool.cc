// MaxPool, AveragePool, LpPool, the global pools of the first two, and cuvil::Pool (the same in NHWC).
#include "kernels/pool.cuh"

#include "ops/norm_order.h"
#include "ops/window_attr.h"

namespace cuvil {
namespace {

struct PoolKind {
  bool max, global, channels_last;
};

PoolKind kind_of(const NodeView& node) {
  const std::string type = node.op_type();
  if (type == "Pool")
    return {node.get<std::string>("mode", "average") == "max", node.get<int64_t>("global", 0) != 0,
            node.get<std::string>("layout", "NCHW") == "NHWC"};
  return {type == "MaxPool" || type == "GlobalMaxPool", type == "GlobalMaxPool" || type == "GlobalAveragePool", false};
}

class Pool : public Op {
 public:
  explicit Pool(const NodeView& node)
      : kind_(kind_of(node)),
        window_(window_attributes(node)),
        count_include_pad_(node.get<int64_t>("count_include_pad", 0) != 0),
        norm_(node.op_type() == "LpPool" ? norm_order(node) : 0),
        column_major_(node.get<int64_t>("storage_order", 0) != 0) {}

  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0);
    const int rank = x.shape.rank(), first = kind_.channels_last ? 1 : 2;
    require(rank >= 3, "X has shape ", x.shape.to_string(), "; at least one spatial dimension is needed");
    const int64_t n = x.shape[0], c = x.shape[kind_.channels_last ? rank - 1 : 1];
    if (kind_.global) return global(ctx, x, n, c, first);

    const std::vector<int64_t> in(x.shape.data() + first, x.shape.data() + first + rank - 2);
    const Window w = window_.resolve(in, {});
    Dims out = x.shape;
    for (int i = 0; i < w.rank; ++i) out[first + i] = w.out[static_cast<size_t>(i)];
    const Tensor y = ctx.output(0, out);
    int64_t* const indices = ctx.has_output(1) ? ctx.output(1, out).as<int64_t>() : nullptr;
    if (y.size() == 0) return;
    PoolParams p;
    p.x = x.data, p.y = y.data;
    p.dtype = x.dtype;
    p.max = kind_.max;
    p.norm = norm_;
    p.channels_last = kind_.channels_last;
    p.n = n, p.c = c;
    p.count_include_pad = count_include_pad_;
    for (int i = 0; i < w.rank; ++i) {
      const size_t from = static_cast<size_t>(i);
      const int to = kMaxSpatial - w.rank + i;
      const auto narrow = [](int64_t v) {
        require(v <= INT_MAX / 2, "a spatial extent of ", v, " is too large for a pool");
        return static_cast<int>(v);
      };
      p.in[to] = narrow(w.in[from]), p.out[to] = narrow(w.out[from]);
      p.kernel[to] = narrow(w.kernel[from]), p.stride[to] = narrow(w.stride[from]);
      p.dilation[to] = narrow(w.dilation[from]);
      p.pad_begin[to] = narrow(w.pad_begin[from]), p.pad_end[to] = narrow(w.pad_end[from]);
    }
    CUVIL_CUDA(indices || !is_float(x.dtype) ? launch_max_pool_indices(p, indices, column_major_, ctx.stream())
                                             : launch_pool(p, ctx.stream()));
  }

 private:
  void global(OpContext& ctx, const Tensor& x, int64_t n, int64_t c, int first) const {
    const int spatial = x.shape.rank() - 2;
    Dims out = x.shape;
    for (int i = 0; i < spatial; ++i) out[first + i] = 1;
    const Tensor y = ctx.output(0, out);
    if (y.size() == 0) return;
    GlobalPoolParams p;
    p.x = x.data, p.y = y.data;
    p.dtype = x.dtype;
    p.max = kind_.max;
    p.channels_last = kind_.channels_last;
    p.n = n, p.c = c;
    p.pixels = x.shape.product(first, first + spatial);
    require(p.pixels > 0, "X of shape ", x.shape.to_string(), " has no pixel to pool");
    CUVIL_CUDA(launch_global_pool(p, ctx.stream()));
  }

  PoolKind kind_;
  WindowAttributes window_;
  bool count_include_pad_;
  float norm_;
  bool column_major_;
};

std::string supports(const NodeView& node) {
  const DType dtype = node.input_dtype(0);
  const bool max_pool = node.op_type() == "MaxPool";
  if (!is_float(dtype) && !(max_pool && (dtype == DType::kI8 || dtype == DType::kU8)))
    return concat("input 0 is ", name_of(dtype), "; f32, f16, bf16", max_pool ? ", f64, i8 and u8" : " and f64",
                  " are served");
  if (node.op_type() == "LpPool" && !(norm_order(node) > 0)) return concat("p is ", norm_order(node));
  if (node.has_output(1) && !max_pool) return "the Indices output is not supported";
  if (const auto x = node.input_shape(0); x && !kind_of(node).global && x->rank() > 2 + kMaxSpatial)
    return concat("X has rank ", x->rank(), "; 1 to 3 spatial dimensions are served");
  AutoPad auto_pad = AutoPad::kNotSet;
  if (std::string reason = parse_auto_pad(node.get<std::string>("auto_pad", ""), &auto_pad); !reason.empty())
    return reason;
  const auto ints = [&](const char* name) { return node.get<std::vector<int64_t>>(name, {}); };
  for (const int64_t pad : ints("pads"))
    if (pad < 0) return "negative pads are not supported";
  if (auto_pad == AutoPad::kSameUpper || auto_pad == AutoPad::kSameLower) {
    // ONNX Runtime and the specification differ in these two: left to the former.
    for (const int64_t d : ints("dilations"))
      if (d != 1) return "auto_pad SAME with dilations is not supported";
    const std::vector<int64_t> kernel = ints("kernel_shape"), strides = ints("strides");
    for (size_t i = 0; i < std::min(kernel.size(), strides.size()); ++i)
      if (kernel[i] < strides[i]) return "auto_pad SAME with a kernel smaller than the stride is not supported";
  }
  return "";
}

const Register max_pool({.domain = "", .type = "MaxPool", .supports = supports, .create = make_op<Pool>});
const Register average_pool({.domain = "", .type = "AveragePool", .supports = supports, .create = make_op<Pool>});
const Register lp_pool({.domain = "", .type = "LpPool", .supports = supports, .create = make_op<Pool>});
const Register global_max({.domain = "", .type = "GlobalMaxPool", .supports = supports, .create = make_op<Pool>});
const Register global_average(
    {.domain = "", .type = "GlobalAveragePool", .supports = supports, .create = make_op<Pool>});
const Register pool({.domain = "cuvil", .type = "Pool", .supports = supports, .create = make_op<Pool>});

}  // namespace
}  // namespace cuvil
