// ConstantOfShape and Range.
#include "kernels/fill.cuh"

#include <cstring>

#include "ops/params.h"
#include "plan/shapes.h"

namespace cuvil {
namespace {

std::string supports_constant(const NodeView& node) {
  if (size_of(node.output_dtype(0)) == 0) return concat("the value is ", name_of(node.output_dtype(0)));
  if (Tensor value; node.find("value", &value) && value.size() != 1)
    return concat("attribute `value` holds ", value.size(), " elements; one is required");
  return "";
}

class ConstantOfShape : public Op {
 public:
  explicit ConstantOfShape(const NodeView& node) {
    Tensor value;  // without the attribute: a float zero, whose bits are zero
    if (node.find("value", &value)) std::memcpy(&bits_, value.data, value.bytes());
  }

  void compute(OpContext& ctx) override {
    const Tensor y = ctx.output(0, plan::to_dims(read_ints(ctx.input(0)), "ConstantOfShape: the shape"));
    const FillParams p{y.data, y.size(), static_cast<int>(size_of(y.dtype)), bits_};
    CUVIL_CUDA(launch_fill(p, ctx.stream()));
  }

 private:
  uint64_t bits_ = 0;
};

std::string supports_range(const NodeView& node) {
  switch (node.input_dtype(0)) {
    case DType::kF32:
    case DType::kF64:
    case DType::kI16:
    case DType::kI32:
    case DType::kI64:
      return "";
    default:
      return concat("input 0 is ", name_of(node.input_dtype(0)), "; f32, f64, i16, i32 or i64 is required");
  }
}

class Range : public Op {
 public:
  explicit Range(const NodeView&) {}

  void compute(OpContext& ctx) override {
    RangeParams p{};
    p.dtype = ctx.input(0).dtype;
    if (p.dtype == DType::kF32) {
      plan_as<float>(ctx, &p.start, &p.delta, &p.count);
    } else if (p.dtype == DType::kF64) {
      plan_as<double>(ctx, &p.start, &p.delta, &p.count);
    } else if (p.dtype == DType::kI16) {
      plan_as<int16_t>(ctx, &p.start_int, &p.delta_int, &p.count);
    } else if (p.dtype == DType::kI32) {
      plan_as<int32_t>(ctx, &p.start_int, &p.delta_int, &p.count);
    } else {
      plan_as<int64_t>(ctx, &p.start_int, &p.delta_int, &p.count);
    }
    p.output = ctx.output(0, Dims{p.count}).data;
    CUVIL_CUDA(launch_range(p, ctx.stream()));
  }

 private:
  template <typename T, typename Wide>
  static void plan_as(OpContext& ctx, Wide* start, Wide* delta, int64_t* count) {
    *start = *ctx.input(0).as<T>();
    *delta = *ctx.input(2).as<T>();
    *count = plan::range_size(*start, static_cast<Wide>(*ctx.input(1).as<T>()), *delta);
  }
};

const Register constant_of_shape{
    {.type = "ConstantOfShape", .supports = supports_constant, .create = make_op<ConstantOfShape>, .cpu_inputs = {0}}};
const Register range{{.type = "Range", .supports = supports_range, .create = make_op<Range>, .cpu_inputs = {0, 1, 2}}};

}  // namespace
}  // namespace cuvil
