// RotaryEmbedding: ONNX's (opset 23) and com.microsoft's, which differ in the order of inputs and in how positions and
// the number of heads are given.
#include "kernels/rotary.cuh"

#include "ops/index_guard.h"
#include "ops/op.h"

namespace cuvil {
namespace {

// Where each form keeps its inputs.
struct Signature {
  int positions, cos, sin;
};
constexpr Signature kOnnx = {3, 1, 2}, kMicrosoft = {1, 2, 3};

template <Signature At>
std::string supports(const NodeView& node) {
  const DType t = node.input_dtype(0);
  if (t != DType::kF32 && t != DType::kF16 && t != DType::kBF16)
    return concat("input 0 is ", name_of(t), "; f32, f16 or bf16 is required");
  for (int i : {At.cos, At.sin})
    if (node.input_dtype(i) != t)
      return concat("input ", i, " is ", name_of(node.input_dtype(i)), ", input 0 ", name_of(t));
  if (node.has_input(At.positions) && node.input_dtype(At.positions) != DType::kI64)
    return concat("the positions are ", name_of(node.input_dtype(At.positions)), "; i64 is required");
  // The schema names a scale, and no kernel of ONNX Runtime applies it.
  if (const float scale = node.get<float>("scale", 1.f); scale != 1.f)
    return concat("scale is ", scale, ", whose effect is not defined; 1 is required");
  return "";
}

template <Signature At>
class Rotary : public Op {
 public:
  explicit Rotary(const NodeView& node)
      : interleaved_(node.get<int64_t>("interleaved", 0) != 0),
        heads_(node.get<int64_t>("num_heads", 0)),
        rotary_(node.get<int64_t>("rotary_embedding_dim", 0)) {}

  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0), cos = ctx.input(At.cos), sin = ctx.input(At.sin);
    const int rank = x.shape.rank();
    require(rank == 3 || rank == 4, "input 0 has shape ", x.shape.to_string(),
            "; [batch, sequence, hidden] or [batch, heads, sequence, head size] is required");
    RotaryParams p{.x = x.data, .cos = cos.data, .sin = sin.data, .dtype = x.dtype};
    p.interleaved = interleaved_;
    p.batch = x.shape[0];
    p.heads_first = rank == 4;
    p.seq = x.shape[p.heads_first ? 2 : 1];
    set_heads(p, x.shape, cos.shape);
    set_cache(p, ctx, cos.shape, sin.shape);
    const Tensor y = ctx.output(0, x.shape);
    p.y = y.data;
    p.out_of_range = guard_.arm("a position", "left that token as it was");
    CUVIL_CUDA(launch_rotary(p, ctx.stream()));
  }

 private:
  void set_heads(RotaryParams& p, const Dims& x, const Dims& cos) const {
    const int64_t in_cache = cos.rank() > 0 ? 2 * cos[cos.rank() - 1] : 0;
    if (p.heads_first) {
      p.heads = x[1];
      p.head_size = x[3];
    } else if (heads_ > 0) {
      require(x[2] % heads_ == 0, "input 0 has shape ", x.to_string(), ", whose last dimension ", heads_,
              " heads do not divide");
      p.heads = heads_;
      p.head_size = x[2] / heads_;
    } else {
      // com.microsoft: the caches are those of whole heads then.
      require(rotary_ == 0 && in_cache > 0 && x[2] % in_cache == 0, "num_heads is 0, and input 0 of shape ",
              x.to_string(), " is not made of heads of ", in_cache, " elements, twice the width of the cosines");
      p.head_size = in_cache;
      p.heads = x[2] / in_cache;
    }
    p.rotary = rotary_ > 0 ? rotary_ : p.head_size;
    require(p.rotary % 2 == 0 && p.rotary <= p.head_size, "heads of ", p.head_size, " elements, of which ", p.rotary,
            " are rotated; an even number of them is required");
  }

  void set_cache(RotaryParams& p, OpContext& ctx, const Dims& cos, const Dims& sin) const {
    require(cos == sin, "cosines have shape ", cos.to_string(), ", sines ", sin.to_string());
    const bool given = ctx.has_input(At.positions);
    const int rank = cos.rank();
    require(rank == (given ? 2 : 3) && cos[rank - 1] == p.rotary / 2, "cosines have shape ", cos.to_string(), "; ",
            given ? "[positions, " : "[batch, sequence, ", p.rotary / 2, "] is required");
    p.cache_rows = cos.product(0, rank - 1);
    if (!given) {
      require(cos[0] == p.batch && cos[1] == p.seq, "cosines have shape ", cos.to_string(), "; [", p.batch, ",", p.seq,
              ",", p.rotary / 2, "] is required");
      return;
    }
    const Tensor positions = ctx.input(At.positions);
    p.one_position = positions.shape == Dims{1} && At.positions == kMicrosoft.positions;
    require(p.one_position || (positions.shape == Dims{p.batch, p.seq}), "the positions have shape ",
            positions.shape.to_string(), "; [", p.batch, ",", p.seq, "] is required",
            At.positions == kMicrosoft.positions ? ", or [1]" : "");
    p.positions = positions.as<int64_t>();
  }

  bool interleaved_;
  int64_t heads_, rotary_;
  IndexGuard guard_;
};

template <Signature At>
OpEntry entry(const char* domain, int since) {
  return {.domain = domain,
          .type = "RotaryEmbedding",
          .since = since,
          .supports = supports<At>,
          .create = make_op<Rotary<At>>,
          .may_inplace = {{0, 0}}};
}

const Register onnx{entry<kOnnx>("", 23)};
const Register microsoft{entry<kMicrosoft>("com.microsoft", 1)};

}  // namespace
}  // namespace cuvil
