// com.microsoft GatherBlockQuantized: embeddings of 4 or 8 bits, scaled in blocks.
#include "kernels/gather_quantized.cuh"

#include "ops/index_guard.h"
#include "ops/op.h"

namespace cuvil {
namespace {

enum Input { kData, kIndices, kScales, kZeroPoints };

std::string supports(const NodeView& node) {
  const DType t = node.input_dtype(kData), index = node.input_dtype(kIndices), scale = node.input_dtype(kScales);
  if (t != DType::kU8 && t != DType::kU4 && t != DType::kI4)
    return concat("input 0 is ", name_of(t), "; u8, u4 or i4 is required");
  const int64_t bits = node.get<int64_t>("bits", 4);
  if (bits != 4 && !(bits == 8 && t == DType::kU8)) return concat("bits is ", bits, " for ", name_of(t));
  if (index != DType::kI32 && index != DType::kI64)
    return concat("input 1 is ", name_of(index), "; i32 or i64 is required");
  if (scale != DType::kF32 && scale != DType::kF16 && scale != DType::kBF16)
    return concat("input 2 is ", name_of(scale), "; f32, f16 or bf16 is required");
  if (node.has_input(kZeroPoints) && node.input_dtype(kZeroPoints) != t)
    return concat("input 3 is ", name_of(node.input_dtype(kZeroPoints)), "; ", name_of(t), " is required");
  return "";
}

class GatherQuantized : public Op {
 public:
  explicit GatherQuantized(const NodeView& node)
      : dtype_(node.input_dtype(kData)),
        bits_(static_cast<int>(node.get<int64_t>("bits", 4))),
        gather_axis_(node.get<int64_t>("gather_axis", 0)),
        quantize_axis_(node.get<int64_t>("quantize_axis", 1)),
        block_(node.get<int64_t>("block_size", 128)) {
    require(block_ > 0, "block_size is ", block_);
  }

  void compute(OpContext& ctx) override {
    const Tensor data = ctx.input(kData), indices = ctx.input(kIndices), scales = ctx.input(kScales);
    const int rank = data.shape.rank();
    // Two codes of 4 bits lie in a byte of a u8 tensor, along its last dimension.
    Dims shape = data.shape;
    if (packed_bytes()) shape[rank - 1] *= 2;
    const int axis = normalize_axis(gather_axis_, rank), quantized = normalize_axis(quantize_axis_, rank);
    require(!packed_bytes() || axis != rank - 1, "gather_axis is the last one, whose codes lie two in a byte");
    Dims blocks = shape;
    blocks[quantized] = (shape[quantized] + block_ - 1) / block_;
    require(scales.shape == blocks, "the scales have shape ", scales.shape.to_string(), "; ", blocks.to_string(),
            " is required for blocks of ", block_, " on axis ", quantized, " of ", shape.to_string());

    GatherQuantizedParams p;
    p.data = data.data, p.indices = indices.data, p.scale = scales.data;
    p.indices64 = indices.dtype == DType::kI64;
    p.bits = bits_, p.is_signed = dtype_ == DType::kI4, p.dtype = scales.dtype;
    // Codes of u8 tensors are centred when no zero points are given, those of u4 ones are not.
    p.default_zero = dtype_ == DType::kU8 ? 1 << (bits_ - 1) : 0;
    p.outer = shape.product(0, axis), p.axis = shape[axis], p.inner = shape.product(axis + 1, rank);
    p.count = indices.size();
    p.layout.outer = shape.product(0, quantized), p.layout.axis = shape[quantized];
    p.layout.inner = shape.product(quantized + 1, rank), p.layout.block = block_;
    p.layout.stride_outer = blocks[quantized] * p.layout.inner;
    p.layout.stride_axis = p.layout.inner, p.layout.stride_inner = 1;
    if (ctx.has_input(kZeroPoints)) set_zero_points(p, ctx.input(kZeroPoints), blocks);

    Dims out;
    for (int i = 0; i < axis; ++i) out.push_back(shape[i]);
    for (const int64_t d : indices.shape) out.push_back(d);
    for (int i = axis + 1; i < rank; ++i) out.push_back(shape[i]);
    p.y = ctx.output(0, out).data;
    p.out_of_range = guard_.arm();
    CUVIL_CUDA(launch_gather_quantized(p, ctx.stream()));
  }

 private:
  bool packed_bytes() const { return dtype_ == DType::kU8 && bits_ == 4; }

  void set_zero_points(GatherQuantizedParams& p, const Tensor& zero, const Dims& blocks) const {
    Dims expected = blocks;
    const int last = blocks.rank() - 1;
    if (packed_bytes()) expected[last] = (blocks[last] + 1) / 2;  // each row in whole bytes
    require(zero.shape == expected, "the zero points have shape ", zero.shape.to_string(), "; ", expected.to_string(),
            " is required");
    p.zero_point = zero.data;
    p.zero_row = blocks[last] > 0 ? blocks[last] : 1;
    p.zero_pitch = packed_bytes() ? 2 * expected[last] : p.zero_row;
  }

  DType dtype_;
  int bits_;
  int64_t gather_axis_, quantize_axis_, block_;
  IndexGuard guard_;
};

const Register gather_quantized{{.domain = "com.microsoft",
                                 .type = "GatherBlockQuantized",
                                 .supports = supports,
                                 .create = make_op<GatherQuantized>}};

}  // namespace
}  // namespace cuvil
