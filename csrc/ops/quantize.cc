// QuantizeLinear, DequantizeLinear (opsets 10 to 28, and com.microsoft's) and DynamicQuantizeLinear.
#include "kernels/quantize.cuh"

#include "ops/op.h"

namespace cuvil {
namespace {

constexpr int kNewestOpset = 28;

bool is_scale(DType t) { return t == DType::kF32 || t == DType::kF16 || t == DType::kBF16; }

bool is_code(DType t) {
  switch (t) {
    case DType::kU2:
    case DType::kI2:
    case DType::kU4:
    case DType::kI4:
    case DType::kU8:
    case DType::kI8:
    case DType::kU16:
    case DType::kI16:
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      return true;
    default:
      return false;
  }
}

constexpr const char* kCodes = "u8, i8, u16, i16, u4, i4, u2, i2, f8e4m3 or f8e5m2";

std::string scale_reason(const NodeView& node, DType code) {
  if (!is_scale(node.input_dtype(1)))
    return concat("input 1 is ", name_of(node.input_dtype(1)), "; f32, f16 or bf16 is required");
  if (node.has_input(2) && node.input_dtype(2) != code)
    return concat("input 2 is ", name_of(node.input_dtype(2)), "; ", name_of(code), " is required");
  return "";
}

// Reads [outer, axis, inner] and the scale's strides from the shapes. One scale; one for each index of the axis (a
// vector); or one for each block of block_size elements along the axis (a tensor).
class Granularity {
 public:
  explicit Granularity(const NodeView& node)
      : axis_(node.get<int64_t>("axis", 1)), block_(node.get<int64_t>("block_size", 0)) {
    require(block_ >= 0, "block_size is ", block_, "; 0 or more is required");
  }

  QuantLayout layout(const Dims& x, const Tensor& scale, const Tensor* zero_point) const {
    require(!zero_point || zero_point->size() == scale.size(), "the zero point has ",
            zero_point ? zero_point->size() : 0, " elements, the scale ", scale.size());
    QuantLayout l;
    if (block_ == 0 && scale.size() == 1 && scale.shape.rank() <= 1) {
      l.inner = x.size();
      return l;
    }
    const int axis = normalize_axis(axis_, x.rank());
    l.outer = x.product(0, axis), l.axis = x[axis], l.inner = x.product(axis + 1, x.rank());
    if (block_ == 0) {
      require(scale.shape == Dims{l.axis}, "the scale has shape ", scale.shape.to_string(), "; [] or [", l.axis,
              "] is required");
      l.stride_axis = 1;
      return l;
    }
    Dims expected = x;
    expected[axis] = (x[axis] + block_ - 1) / block_;
    require(scale.shape == expected, "the scale has shape ", scale.shape.to_string(), "; ", expected.to_string(),
            " is required for blocks of ", block_, " on axis ", axis, " of ", x.to_string());
    l.block = block_;
    l.stride_outer = expected[axis] * l.inner, l.stride_axis = l.inner, l.stride_inner = 1;
    return l;
  }

 private:
  int64_t axis_, block_;
};

std::string supports_quantize(const NodeView& node) {
  const DType x = node.input_dtype(0), y = node.output_dtype(0);
  if (!is_scale(x) && x != DType::kI32) return concat("input 0 is ", name_of(x), "; f32, f16, bf16 or i32 is required");
  if (!is_code(y)) return concat("output 0 is ", name_of(y), "; ", kCodes, " is required");
  // The division is done in fp32, which `precision` asks for when it is FLOAT and leaves open when it is absent.
  const int64_t precision = node.get<int64_t>("precision", 0);
  if (precision != 0 && precision != static_cast<int64_t>(DType::kF32))
    return concat("precision is ", precision, "; 0 or 1 (float) is required");
  return scale_reason(node, y);
}

std::string supports_dequantize(const NodeView& node) {
  const DType x = node.input_dtype(0), y = node.output_dtype(0);
  if (!is_code(x) && x != DType::kI32) return concat("input 0 is ", name_of(x), "; ", kCodes, ", or i32, is required");
  if (!is_scale(y)) return concat("output 0 is ", name_of(y), "; f32, f16 or bf16 is required");
  return scale_reason(node, x);
}

class Quantize : public Op {
 public:
  explicit Quantize(const NodeView& node)
      : granularity_(node), dtype_(node.output_dtype(0)), saturate_(node.get<int64_t>("saturate", 1) != 0) {}

  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0), scale = ctx.input(1);
    const Tensor zero = ctx.has_input(2) ? ctx.input(2) : Tensor{};
    QuantizeParams p;
    p.x = x.data, p.scale = scale.data, p.zero_point = zero.data;
    p.layout = granularity_.layout(x.shape, scale, ctx.has_input(2) ? &zero : nullptr);
    p.y = ctx.output(0, x.shape).data;
    p.x_dtype = x.dtype, p.scale_dtype = scale.dtype, p.y_dtype = dtype_;
    p.saturate = saturate_;
    CUVIL_CUDA(launch_quantize(p, ctx.stream()));
  }

 private:
  Granularity granularity_;
  DType dtype_;
  bool saturate_;
};

class Dequantize : public Op {
 public:
  explicit Dequantize(const NodeView& node) : granularity_(node), dtype_(node.output_dtype(0)) {}

  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0), scale = ctx.input(1);
    const Tensor zero = ctx.has_input(2) ? ctx.input(2) : Tensor{};
    DequantizeParams p;
    p.x = x.data, p.scale = scale.data, p.zero_point = zero.data;
    p.layout = granularity_.layout(x.shape, scale, ctx.has_input(2) ? &zero : nullptr);
    p.y = ctx.output(0, x.shape).data;
    p.x_dtype = x.dtype, p.scale_dtype = scale.dtype, p.y_dtype = dtype_;
    CUVIL_CUDA(launch_dequantize(p, ctx.stream()));
  }

 private:
  Granularity granularity_;
  DType dtype_;
};

std::string supports_dynamic(const NodeView& node) {
  const DType x = node.input_dtype(0);
  return x == DType::kF32 ? "" : concat("input 0 is ", name_of(x), "; f32 is required");
}

class DynamicQuantize : public Op {
 public:
  explicit DynamicQuantize(const NodeView&) {}

  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0);
    require(x.size() > 0, "input 0 has shape ", x.shape.to_string(), "; a range needs an element");
    const auto result = [&](int i, DType dtype) {
      return ctx.has_output(i) ? ctx.output(i, {}).data : ctx.scratch(size_of(dtype));
    };
    DynamicRangeParams r{.x = x.as<float>(), .count = x.size()};
    r.partial = static_cast<float*>(ctx.scratch(kRangeBlocks * 2 * sizeof(float)));
    QuantizeParams p;
    p.x = x.data;
    p.y = ctx.output(0, x.shape).data;
    r.scale = static_cast<float*>(result(1, DType::kF32));
    r.zero_point = static_cast<uint8_t*>(result(2, DType::kU8));
    CUVIL_CUDA(launch_dynamic_range(r, ctx.stream()));
    p.scale = r.scale, p.zero_point = r.zero_point;
    p.x_dtype = p.scale_dtype = DType::kF32, p.y_dtype = DType::kU8;
    p.layout.inner = x.size();
    CUVIL_CUDA(launch_quantize(p, ctx.stream()));
  }
};

OpEntry quantize(const char* domain, int since, int until) {
  return {.domain = domain,
          .type = "QuantizeLinear",
          .since = since,
          .until = until,
          .supports = supports_quantize,
          .create = make_op<Quantize>};
}
OpEntry dequantize(const char* domain, int since, int until) {
  return {.domain = domain,
          .type = "DequantizeLinear",
          .since = since,
          .until = until,
          .supports = supports_dequantize,
          .create = make_op<Dequantize>};
}

const Register quantize_onnx{quantize("", 10, kNewestOpset)};
const Register quantize_microsoft{quantize("com.microsoft", 1, 1)};
const Register dequantize_onnx{dequantize("", 10, kNewestOpset)};
const Register dequantize_microsoft{dequantize("com.microsoft", 1, 1)};
const Register dynamic{
    {.type = "DynamicQuantizeLinear", .since = 11, .supports = supports_dynamic, .create = make_op<DynamicQuantize>}};

}  // namespace
}  // namespace cuvil
