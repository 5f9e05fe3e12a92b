// cuvil::RotaryEmbedding: heads rotated by the angles of their position.
#include "kernels/rotary_half.cuh"

#include "generated/ops.inc"
#include "ops/op.h"

namespace cuvil {
namespace {

std::string supports(const NodeView& node) {
  const DType t = node.input_dtype(0);
  if (!is_float(t)) return concat("input 0 is ", name_of(t), "; f32, f16, bf16 or f64 is required");
  const DType factor = node.input_dtype(1);
  if ((factor != t && factor != DType::kF32) || node.input_dtype(2) != factor) {
    return concat("cos is ", name_of(factor), " and sin ", name_of(node.input_dtype(2)), "; both ", name_of(t),
                  " or both f32 is required");
  }
  const int64_t heads = node.get<int64_t>("num_heads", 0), dim = node.get<int64_t>("rotary_dim", 0);
  const int64_t rotated = node.get<int64_t>("rotated_heads", 0);
  if (heads <= 0 || rotated < 0 || rotated > heads) {
    return concat("num_heads is ", heads, " and rotated_heads ", rotated);
  }
  if (dim <= 0 || dim % 2 != 0) return concat("rotary_dim is ", dim, "; a positive even number is required");
  if (const auto x = node.input_shape(0)) {
    if (x->rank() != 3) return concat("input 0 has rank ", x->rank(), "; 3 is required");
    const int64_t width = (*x)[2];
    if (width >= 0 && (width % heads != 0 || width / heads < dim)) {
      return concat("input 0 is ", width, " wide; ", heads, " heads of at least ", dim, " are required");
    }
    if (width >= 0 && node.get<int64_t>("interleaved", 0) != 0 && width / heads % 2 != 0) {
      return concat("pairs are neighbours in heads of odd size ", width / heads);
    }
  }
  return "";
}

class RotaryEmbedding : public Op {
 public:
  explicit RotaryEmbedding(const NodeView& node)
      : heads_(node.get<int64_t>("num_heads", 0)),
        dim_(node.get<int64_t>("rotary_dim", 0)),
        rotated_(node.get<int64_t>("rotated_heads", 0)),
        interleaved_(node.get<int64_t>("interleaved", 0) != 0),
        per_pair_(node.get<int64_t>("per_pair", 0) != 0) {}

  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0), cos = ctx.input(1), sin = ctx.input(2);
    require(x.shape.rank() == 3 && x.shape[2] % heads_ == 0 && x.shape[2] / heads_ >= dim_, "X has shape ",
            x.shape.to_string(), "; [B,S,", heads_, "*H] with H of at least ", dim_, " is required");
    require(!interleaved_ || x.shape[2] / heads_ % 2 == 0, "pairs are neighbours in heads of odd size ",
            x.shape[2] / heads_);
    const int64_t batch = x.shape[0], s = x.shape[1], width = per_pair_ ? dim_ / 2 : dim_;
    for (const Tensor* factor : {&cos, &sin}) {
      const Dims& d = factor->shape;
      require(d.rank() == 3 && (d[0] == 1 || d[0] == batch) && (d[1] == 1 || d[1] == s) && d[2] == width,
              "cos and sin have shapes ", cos.shape.to_string(), " and ", sin.shape.to_string(), "; [1 or ", batch,
              ",1 or ", s, ",", width, "] is required");
    }
    require(cos.shape == sin.shape, "cos and sin have different shapes, ", cos.shape.to_string(), " and ",
            sin.shape.to_string());
    RotaryHalfParams p{.x = x.data, .cos = cos.data, .sin = sin.data, .dtype = x.dtype, .factor_dtype = cos.dtype};
    p.y = ctx.output(0, x.shape).data;
    p.rows = batch * s;
    p.s = s;
    p.row_stride = cos.shape[1] == 1 ? 0 : width;
    p.batch_stride = cos.shape[0] == 1 ? 0 : cos.shape[1] * width;
    p.heads = static_cast<int>(heads_);
    p.rotated_heads = static_cast<int>(rotated_ != 0 ? rotated_ : heads_);
    p.head_size = static_cast<int>(x.shape[2] / heads_);
    p.rotary_dim = static_cast<int>(dim_);
    p.interleaved = interleaved_;
    p.per_pair = per_pair_;
    CUVIL_CUDA(launch_rotary_half(p, ctx.stream()));
  }

 private:
  int64_t heads_, dim_, rotated_;
  bool interleaved_, per_pair_;
};

const Register rotary_embedding{{.domain = spec::kDomain,
                                 .type = spec::RotaryEmbedding::kName,
                                 .supports = supports,
                                 .create = make_op<RotaryEmbedding>,
                                 .may_inplace = {{0, 0}}}};

}  // namespace
}  // namespace cuvil
