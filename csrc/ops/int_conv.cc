// Convolutions of 8-bit integers, ConvInteger and QLinearConv: W times the windows of X, as a matrix product.
#include <algorithm>

#include "ops/int_gemm_engine.h"
#include "ops/int_operand.h"
#include "ops/window_attr.h"

namespace cuvil {
namespace {

struct Signature {
  int w, x_scale, x_zero, w_scale, w_zero, y_scale, y_zero, bias;
};

Signature signature_of(const std::string& op) {
  if (op == "ConvInteger") return {1, -1, 2, -1, 3, -1, -1, -1};
  return {3, 1, 2, 4, 5, 6, 7, 8};  // QLinearConv
}

std::string supports(const NodeView& node) {
  const Signature at = signature_of(node.op_type());
  for (int i : {0, at.w, at.x_zero, at.w_zero, at.y_zero})
    if (std::string reason = i < 0 ? "" : int8_reason(node, i); !reason.empty()) return reason;
  for (int i : {at.x_scale, at.w_scale, at.y_scale})
    if (std::string reason = i < 0 ? "" : scale_reason(node, i); !reason.empty()) return reason;
  const DType y = node.output_dtype(0);
  if (at.y_scale > 0 ? !is_int8(y) : y != DType::kI32)
    return concat("output 0 is ", name_of(y), ", which is not served");
  if (at.y_zero > 0 && node.has_input(at.y_zero) && node.input_dtype(at.y_zero) != y)
    return concat("input ", at.y_zero, " is ", name_of(node.input_dtype(at.y_zero)), " and output 0 is ", name_of(y));
  if (at.bias > 0 && node.has_input(at.bias) && node.input_dtype(at.bias) != DType::kI32)
    return concat("input ", at.bias, " is ", name_of(node.input_dtype(at.bias)), "; i32 is required");
  AutoPad ignored;
  return parse_auto_pad(node.get<std::string>("auto_pad", ""), &ignored);
}

class IntConv : public Op {
 public:
  explicit IntConv(const NodeView& node)
      : at_(signature_of(node.op_type())),
        y_dtype_(node.output_dtype(0)),
        window_(window_attributes(node)),
        groups_(node.get<int64_t>("group", 1)) {}

  bool prepack(int input, const Tensor& weight, cudaStream_t stream) override {
    if (input != at_.w || weight.shape.rank() < 3) return false;
    left_ = pack_left(weight, stream, [&](size_t bytes) {
      buffers_.emplace_back(bytes);
      return buffers_.back().get();
    });
    is_packed_ = true;
    return true;
  }

  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0);
    const Left w =
        is_packed_ ? left_ : pack_left(ctx.input(at_.w), ctx.stream(), [&](size_t n) { return ctx.scratch(n); });
    const int rank = x.shape.rank();
    require(rank >= 3 && rank <= 2 + kMaxSpatial && w.shape.rank() == rank, "X of shape ", x.shape.to_string(),
            " and W of shape ", w.shape.to_string(), " are not those of a convolution of 1 to 3 spatial dimensions");
    const int64_t images = x.shape[0], channels = w.shape[1], filters = w.shape[0];
    require(groups_ > 0 && x.shape[1] == channels * groups_ && filters % groups_ == 0, "X of shape ",
            x.shape.to_string(), " and W of shape ", w.shape.to_string(), " do not fit group=", groups_);
    const std::vector<int64_t> in(x.shape.begin() + 2, x.shape.end()), kernel(w.shape.begin() + 2, w.shape.end());
    require(window_.kernel.empty() || window_.kernel == kernel, "kernel_shape differs from the shape of W, ",
            w.shape.to_string());
    const Window window = window_.resolve(in, kernel);
    Dims shape{images, filters};
    for (int i = 0; i < window.rank; ++i) shape.push_back(window.out[static_cast<size_t>(i)]);
    const Tensor y = ctx.output(0, shape);
    if (y.size() == 0) return;

    const PackWindowsParams right = pack_windows(ctx, x, channels, window);
    const int64_t k = channels * window.kernel_size(), kp = packed_k(k), each = filters / groups_;
    IntEpilogueParams e = operands(ctx, filters);
    e.rows_unsigned = w.is_unsigned, e.columns_unsigned = right.is_unsigned;
    e.m = each, e.n = right.pixels, e.ld = right.padded_pixels, e.k = k;

    // One batch of all images when there is one group, else one of all groups for each image.
    const int64_t calls = groups_ == 1 ? 1 : images;
    IntGemmParams g{.a = w.data, .m = each, .n = right.padded_pixels, .kp = kp};
    g.batch = e.batch = groups_ == 1 ? images : groups_;
    g.stride_a = groups_ == 1 ? 0 : each * kp, g.stride_b = right.padded_pixels * kp;
    g.d = static_cast<int32_t*>(ctx.scratch(static_cast<size_t>(g.batch * g.m * g.n) * sizeof(int32_t)));
    e.acc = g.d, e.row_sums = w.sums;
    e.row_sums_stride = e.row_offset = groups_ == 1 ? 0 : each;
    e.column_sums_stride = right.padded_pixels;
    for (int64_t i = 0; i < calls; ++i) {
      g.b = right.y + i * groups_ * g.stride_b;
      ctx.shared<IntGemmEngine>().run(ctx, g);
      e.column_sums = right.sums + i * groups_ * right.padded_pixels;
      e.y = y.as<char>() + i * filters * right.pixels * static_cast<int64_t>(size_of(y_dtype_));
      CUVIL_CUDA(launch_int_epilogue(e, ctx.stream()));
    }
  }

 private:
  // W as packed rows, one a filter.
  struct Left {
    int8_t* data = nullptr;
    int32_t* sums = nullptr;
    bool is_unsigned = false;
    Dims shape;
  };

  template <typename Allocate>
  static Left pack_left(const Tensor& w, cudaStream_t stream, const Allocate& allocate) {
    PackRowsParams p{.x = w.data, .is_unsigned = w.dtype == DType::kU8};
    require(w.shape.rank() >= 3, "W has shape ", w.shape.to_string(), "; [filters, channels, kernel...] is required");
    p.rows = w.shape[0], p.k = w.shape.product(1, w.shape.rank());
    p.y = static_cast<int8_t*>(allocate(static_cast<size_t>(p.rows * packed_k(p.k))));
    p.sums = static_cast<int32_t*>(allocate(static_cast<size_t>(p.rows) * sizeof(int32_t)));
    CUVIL_CUDA(launch_pack_rows(p, stream));
    return {p.y, p.sums, p.is_unsigned, w.shape};
  }

  PackWindowsParams pack_windows(OpContext& ctx, const Tensor& x, int64_t channels, const Window& window) const {
    PackWindowsParams p{.x = x.data, .is_unsigned = x.dtype == DType::kU8};
    p.zero_point = operand(ctx, at_.x_zero, "the zero point of X", 1).data;
    p.images = x.shape[0], p.groups = groups_, p.channels = channels;
    p.pixels = window.out_size(), p.padded_pixels = padded_columns(p.pixels);
    p.rank = window.rank;
    std::copy_n(window.in.begin(), p.rank, p.in);
    std::copy_n(window.out.begin(), p.rank, p.out);
    std::copy_n(window.kernel.begin(), p.rank, p.kernel);
    std::copy_n(window.stride.begin(), p.rank, p.stride);
    std::copy_n(window.dilation.begin(), p.rank, p.dilation);
    std::copy_n(window.pad_begin.begin(), p.rank, p.pad);
    const int64_t rows = p.images * p.groups * p.padded_pixels, kp = packed_k(channels * window.kernel_size());
    p.y = static_cast<int8_t*>(ctx.scratch(static_cast<size_t>(rows * kp)));
    p.sums = static_cast<int32_t*>(ctx.scratch(static_cast<size_t>(rows) * sizeof(int32_t)));
    CUVIL_CUDA(launch_pack_windows(p, ctx.stream()));
    return p;
  }

  IntEpilogueParams operands(OpContext& ctx, int64_t filters) const {
    IntEpilogueParams e;
    e.y_dtype = y_dtype_;
    e.row_zero = operand(ctx, at_.w_zero, "the zero point of W", filters);
    e.column_zero = operand(ctx, at_.x_zero, "the zero point of X", 1);
    e.row_scale = operand(ctx, at_.w_scale, "the scale of W", filters);
    e.column_scale = operand(ctx, at_.x_scale, "the scale of X", 1);
    e.y_scale = operand(ctx, at_.y_scale, "the scale of Y", 1);
    e.y_zero = operand(ctx, at_.y_zero, "the zero point of Y", 1);
    e.bias = operand(ctx, at_.bias, "the bias", filters);
    require(!e.bias.data || e.bias.count == filters, "the bias holds one value for ", filters, " filters");
    return e;
  }

  Signature at_;
  DType y_dtype_;
  WindowAttributes window_;
  int64_t groups_;
  Left left_;
  std::vector<DeviceBuffer> buffers_;
  bool is_packed_ = false;
};

const Register conv_integer{{.type = "ConvInteger", .since = 10, .supports = supports, .create = make_op<IntConv>}};
const Register qlinear_conv{{.type = "QLinearConv", .since = 10, .supports = supports, .create = make_op<IntConv>}};

}  // namespace
}  // namespace cuvil
