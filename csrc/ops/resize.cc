// Resize (opset 10 and later) and Upsample (opsets 7 and 9). Scales, sizes and the region of interest are host inputs.
#include "kernels/resize.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstring>

#include "ops/copy_view.h"
#include "ops/params.h"
#include "plan/resize.h"

namespace cuvil {
namespace {

// Names of an attribute's values in the order of an enum, and the position of one of them; -1 when it is none.
template <size_t N>
int position(const char* const (&names)[N], const std::string& name) {
  for (size_t i = 0; i < N; ++i)
    if (name == names[i]) return static_cast<int>(i);
  return -1;
}

constexpr const char* kModes[] = {"nearest", "linear", "cubic"};
constexpr const char* kCoordinates[] = {"half_pixel",    "half_pixel_symmetric", "pytorch_half_pixel",
                                        "align_corners", "asymmetric",           "tf_crop_and_resize"};
constexpr const char* kNearestModes[] = {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"};

// Inputs, by the form of the operator.
struct Inputs {
  int roi = -1, scales = 1, sizes = -1;
};

Inputs inputs_of(const NodeView& node) {
  if (node.op_type() == "Resize" && node.since_version() >= 11) return {1, 2, 3};
  return {};
}

std::string supports(const NodeView& node) {
  const std::string mode = node.get<std::string>("mode", "nearest");
  const std::string coordinates = node.get<std::string>("coordinate_transformation_mode", "half_pixel");
  const std::string rounding = node.get<std::string>("nearest_mode", "round_prefer_floor");
  if (position(kModes, mode) < 0) return concat("mode is '", mode, "'");
  if (position(kCoordinates, coordinates) < 0) return concat("coordinate_transformation_mode is '", coordinates, "'");
  if (position(kNearestModes, rounding) < 0) return concat("nearest_mode is '", rounding, "'");
  if (node.get<int64_t>("antialias", 0) != 0) return "antialias is 1; only 0 is served";
  const DType t = node.input_dtype(0);
  const bool integer = t == DType::kU8 || t == DType::kI8 || t == DType::kI32;
  if (mode != "nearest" && !is_float(t) && !(mode == "linear" && integer))
    return concat("input 0 is ", name_of(t), " in mode ", mode, "; f32, f16, bf16, f64",
                  mode == "linear" ? ", u8, i8 or i32" : "", " is required");
  if (mode == "nearest" && coordinates == "tf_crop_and_resize" && !is_float(t))
    return concat("input 0 is ", name_of(t), " with tf_crop_and_resize; a floating type is required");
  const DType roi = node.input_dtype(inputs_of(node).roi);
  if (roi != DType::kUndefined && roi != DType::kF32 && coordinates == "tf_crop_and_resize")
    return concat("roi is ", name_of(roi), "; f32 is required");
  return require_movable(node, 0);
}

void write_bits(DType dtype, float value, unsigned char* bits) {
  const __half f16 = __float2half_rn(value);
  const __nv_bfloat16 bf16 = __float2bfloat16_rn(value);
  const double f64 = value;
  if (dtype == DType::kF16) {
    std::memcpy(bits, &f16, sizeof(f16));
  } else if (dtype == DType::kBF16) {
    std::memcpy(bits, &bf16, sizeof(bf16));
  } else if (dtype == DType::kF64) {
    std::memcpy(bits, &f64, sizeof(f64));
  } else {
    std::memcpy(bits, &value, sizeof(value));
  }
}

class Resize : public Op {
 public:
  explicit Resize(const NodeView& node) : inputs_(inputs_of(node)) {
    const bool modern = inputs_.sizes > 0;  // before opset 11 coordinates and rounding have no attributes
    p_.mode = static_cast<ResizeMode>(position(kModes, node.get<std::string>("mode", "nearest")));
    p_.coordinates = static_cast<ResizeCoordinates>(position(
        kCoordinates, node.get<std::string>("coordinate_transformation_mode", modern ? "half_pixel" : "asymmetric")));
    p_.nearest = modern ? static_cast<ResizeNearest>(
                              position(kNearestModes, node.get<std::string>("nearest_mode", "round_prefer_floor")))
                        : ResizeNearest::kSimple;
    p_.cubic_a = node.get<float>("cubic_coeff_a", -0.75f);
    p_.exclude_outside = node.get<int64_t>("exclude_outside", 0) != 0;
    p_.extrapolation = node.get<float>("extrapolation_value", 0.0f);
    node.find("axes", &request_.axes);
    node.find("scales", &request_.scales);  // Upsample 7
    request_.policy = plan::aspect_policy(node.get<std::string>("keep_aspect_ratio_policy", "stretch"));
  }

  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0);
    plan::ResizeRequest request = request_;
    const bool crops = p_.coordinates == ResizeCoordinates::kCropAndResize;
    read_floats(ctx, inputs_.scales, &request.scales);
    if (crops) read_floats(ctx, inputs_.roi, &request.roi);
    if (ctx.has_input(inputs_.sizes)) request.sizes = read_ints(ctx.input(inputs_.sizes));
    const plan::ResizePlan plan = plan::resize(x.shape, request, crops);
    const Tensor y = ctx.output(0, plan.shape);
    if (y.size() == 0) return;
    if (plan.rank == 1 && !plan.dim[0].resized) return copy_elements(ctx, x, y);

    ResizeParams p = p_;
    p.x = x.data;
    p.y = y.data;
    p.dtype = x.dtype;
    p.element_size = static_cast<int>(size_of(x.dtype));
    write_bits(x.dtype, p.extrapolation, p.extrapolation_bits);
    p.rank = plan.rank;
    for (int i = 0; i < plan.rank; ++i) {
      const plan::ResizeDim& d = plan.dim[i];
      p.in[i] = d.in;
      p.out[i] = d.out;
      p.in_stride[i] = d.in_stride;
      p.scale[i] = d.scale;
      p.roi_start[i] = d.roi_start;
      p.roi_end[i] = d.roi_end;
      p.resized[i] = d.resized;
    }
    if (p.mode == ResizeMode::kNearest && !crops) widen(&p);
    const cudaError_t code = launch_resize(p, ctx.stream());
    if (code == cudaErrorNotSupported)
      fail(ErrorKind::kNotImplemented, "Resize: ", x.shape.to_string(), " to ", plan.shape.to_string(),
           " resizes more than three dimensions, or holds more than 2^31 elements");
    CUVIL_CUDA(code);
  }

 private:
  // Whole groups of an innermost dimension that is not resized (the channels of NHWC) move at once.
  static void widen(ResizeParams* p) {
    const int inner = p->rank - 1;
    if (p->resized[inner]) return;
    const uintptr_t addresses = reinterpret_cast<uintptr_t>(p->x) | reinterpret_cast<uintptr_t>(p->y);
    while (p->element_size < 16 && p->in[inner] % 2 == 0 &&
           addresses % (2 * static_cast<uintptr_t>(p->element_size)) == 0) {
      p->element_size *= 2;
      p->in[inner] /= 2;
      p->out[inner] /= 2;
      for (int i = 0; i < inner; ++i) p->in_stride[i] /= 2;
    }
  }

  static void read_floats(OpContext& ctx, int input, std::vector<float>* out) {
    if (!ctx.has_input(input)) return;
    const Tensor t = ctx.input(input);
    if (t.size() == 0) return;
    require(t.dtype == DType::kF32, "Resize: input ", input, " is ", name_of(t.dtype), "; f32 is required");
    out->assign(t.as<float>(), t.as<float>() + t.size());
  }

  Inputs inputs_;
  plan::ResizeRequest request_;
  ResizeParams p_{};
};

OpEntry entry(const char* type, int since, std::vector<int> cpu_inputs) {
  return {.type = type,
          .since = since,
          .supports = supports,
          .create = make_op<Resize>,
          .cpu_inputs = std::move(cpu_inputs)};
}

const Register resize{entry("Resize", 10, {1, 2, 3})};
const Register upsample{entry("Upsample", 7, {1})};

}  // namespace
}  // namespace cuvil
