// DeformConv (opset 19) of images.
#include "kernels/deform_conv.cuh"

#include <climits>

#include "ops/op.h"

namespace cuvil {
namespace {

std::string supports(const NodeView& node) {
  const DType t = node.input_dtype(0);
  if (t != DType::kF32 && t != DType::kF16 && t != DType::kBF16 && t != DType::kF64)
    return concat("input 0 is ", name_of(t), "; a floating type is required");
  const auto x = node.input_shape(0);
  if (!x || x->rank() != 4) return "input 0 is not known to have rank 4";
  return "";
}

int small(int64_t n) {
  require(n >= 0 && n <= INT_MAX, "dimension ", n, " is above ", INT_MAX);
  return static_cast<int>(n);
}

class DeformConv : public Op {
 public:
  explicit DeformConv(const NodeView& node)
      : strides_(pair(node, "strides", 1)),
        dilations_(pair(node, "dilations", 1)),
        pads_(node.get<std::vector<int64_t>>("pads", {0, 0, 0, 0})),
        group_(node.get<int64_t>("group", 1)),
        offset_group_(node.get<int64_t>("offset_group", 1)) {
    require(pads_.size() == 4 && group_ > 0 && offset_group_ > 0 && strides_[0] > 0 && strides_[1] > 0, "pads holds ",
            pads_.size(), " numbers, group is ", group_, ", offset_group ", offset_group_,
            "; 4 and positive ones are required, and positive strides");
  }

  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0), w = ctx.input(1), offset = ctx.input(2);
    require(x.shape.rank() == 4 && w.shape.rank() == 4 && x.shape[1] == w.shape[1] * group_ &&
                w.shape[0] % group_ == 0 && x.shape[1] % offset_group_ == 0,
            "inputs 0 and 1 have shapes ", x.shape.to_string(), " and ", w.shape.to_string(), " with ", group_,
            " groups and ", offset_group_, " groups of offsets");
    const int64_t taps = w.shape[2] * w.shape[3] * offset_group_;
    const int64_t h = extent(x.shape, w.shape, 0), width = extent(x.shape, w.shape, 1);
    expect(offset, 2, Dims{x.shape[0], 2 * taps, h, width});
    DeformConvParams p{.x = x.data, .w = w.data, .offset = offset.data, .dtype = x.dtype, .batch = x.shape[0]};
    if (ctx.has_input(3)) p.bias = expect(ctx.input(3), 3, Dims{w.shape[0]});
    if (ctx.has_input(4)) p.mask = expect(ctx.input(4), 4, Dims{x.shape[0], taps, h, width});
    p.channels = small(x.shape[1]);
    p.height = small(x.shape[2]);
    p.width = small(x.shape[3]);
    p.out_channels = small(w.shape[0]);
    p.out_h = small(h);
    p.out_w = small(width);
    p.kernel_h = small(w.shape[2]);
    p.kernel_w = small(w.shape[3]);
    p.group = small(group_);
    p.offset_group = small(offset_group_);
    p.stride_h = small(strides_[0]);
    p.stride_w = small(strides_[1]);
    p.pad_top = static_cast<int>(pads_[0]);
    p.pad_left = static_cast<int>(pads_[1]);
    p.dilation_h = small(dilations_[0]);
    p.dilation_w = small(dilations_[1]);
    p.y = ctx.output(0, Dims{x.shape[0], w.shape[0], h, width}).data;
    CUVIL_CUDA(launch_deform_conv(p, ctx.stream()));
  }

 private:
  static std::vector<int64_t> pair(const NodeView& node, const char* attr, int64_t fallback) {
    const auto v = node.get<std::vector<int64_t>>(attr, {fallback, fallback});
    require(v.size() == 2, attr, " holds ", v.size(), " numbers; 2 are required");
    return v;
  }

  // Of the output along a spatial axis.
  int64_t extent(const Dims& x, const Dims& w, int axis) const {
    const auto i = static_cast<size_t>(axis);
    const int64_t room = x[2 + axis] + pads_[i] + pads_[i + 2] - (w[2 + axis] - 1) * dilations_[i] - 1;
    return room < 0 ? 0 : room / strides_[i] + 1;
  }

  static const void* expect(const Tensor& x, int i, const Dims& shape) {
    require(x.shape == shape, "input ", i, " has the shape ", x.shape.to_string(), "; ", shape.to_string(),
            " is required");
    return x.data;
  }

  std::vector<int64_t> strides_, dilations_, pads_;
  int64_t group_, offset_group_;
};

const Register deform_conv{{.type = "DeformConv", .since = 19, .supports = supports, .create = make_op<DeformConv>}};

}  // namespace
}  // namespace cuvil
