// Col2Im, opset 18 and later; image and block shapes are host inputs.
#include "kernels/col2im.cuh"

#include "ops/params.h"
#include "ops/window_attr.h"

namespace cuvil {
namespace {

constexpr int kImageShape = 1, kBlockShape = 2;

std::string supports(const NodeView& node) {
  const DType t = node.input_dtype(0);
  if (!is_float(t)) return concat("input 0 is ", name_of(t), "; f32, f16, bf16 or f64 is required");
  for (int i : {kImageShape, kBlockShape})
    if (const auto s = node.input_shape(i); s && s->rank() == 1 && (*s)[0] > kMaxSpatial)
      return concat("input ", i, " holds ", (*s)[0], " extents; 1 to ", kMaxSpatial, " are served");
  for (const int64_t pad : node.get<std::vector<int64_t>>("pads", {}))
    if (pad < 0) return "negative pads are not supported";
  return "";
}

class Col2Im : public Op {
 public:
  explicit Col2Im(const NodeView& node) : window_(window_attributes(node)) {}

  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0);
    const std::vector<int64_t> image = read_ints(ctx.input(kImageShape)), block = read_ints(ctx.input(kBlockShape));
    const Window w = window_.resolve(image, block);
    const int64_t elements = w.kernel_size(), blocks = w.out_size();
    require(x.shape.rank() == 3 && x.shape[1] % elements == 0 && x.shape[2] == blocks, "input 0 has shape ",
            x.shape.to_string(), "; [N, C * ", elements, ", ", blocks, "] is required");
    Dims shape{x.shape[0], x.shape[1] / elements};
    for (int64_t extent : image) shape.push_back(extent);
    const Tensor y = ctx.output(0, shape);
    if (y.size() == 0) return;
    Col2ImParams p;
    p.x = x.data, p.y = y.data;
    p.dtype = x.dtype;
    p.planes = shape[0] * shape[1];
    for (int i = 0; i < w.rank; ++i) {
      const size_t from = static_cast<size_t>(i);
      const int to = kMaxSpatial - w.rank + i;
      const auto narrow = [](int64_t v) {
        require(v <= INT_MAX / 2, "an extent of ", v, " is too large");
        return static_cast<int>(v);
      };
      p.image[to] = narrow(w.in[from]), p.block[to] = narrow(w.kernel[from]), p.count[to] = narrow(w.out[from]);
      p.stride[to] = narrow(w.stride[from]), p.dilation[to] = narrow(w.dilation[from]);
      p.pad[to] = narrow(w.pad_begin[from]);
      narrow(w.kernel[from] * w.dilation[from]);
    }
    CUVIL_CUDA(launch_col2im(p, ctx.stream()));
  }

 private:
  WindowAttributes window_;
};

const Register col2im{{.type = "Col2Im",
                       .since = 18,
                       .supports = supports,
                       .create = make_op<Col2Im>,
                       .cpu_inputs = {kImageShape, kBlockShape}}};

}  // namespace
}  // namespace cuvil
