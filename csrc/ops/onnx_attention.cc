// Attention of the ONNX standard (opset 23 and later) without a cache. The standard gives 0 to a query that may see no
// key.
#include <cmath>

#include "ops/attention_operands.h"
#include "ops/op.h"

namespace cuvil {
namespace {

std::string supports(const NodeView& node) {
  const DType t = node.input_dtype(0);
  if (t != DType::kF32 && t != DType::kF16 && t != DType::kBF16) {
    return concat("input 0 is ", name_of(t), "; f32, f16 or bf16 is required");
  }
  for (int i = 1; i <= 2; ++i) {
    if (node.input_dtype(i) != t)
      return concat("input ", i, " is ", name_of(node.input_dtype(i)), ", not ", name_of(t));
  }
  for (int i = 4; i < node.num_inputs(); ++i) {
    if (node.has_input(i))
      return concat("input ", i, " (a cache or its lengths) is given; only attention without a cache runs here");
  }
  for (int i = 1; i < node.num_outputs(); ++i) {
    if (node.has_output(i)) return concat("output ", i, " is wanted; only Y is computed");
  }
  if (node.get<float>("softcap", 0.f) != 0.f) return "softcap is set";
  if (const int64_t precision = node.get<int64_t>("softmax_precision", 1); precision == 11)
    return "softmax_precision is double";
  const auto q = node.input_shape(0), v = node.input_shape(2);
  if (!q) return "the rank of Q is unknown";
  for (int i = 0; i <= 2; ++i)
    if (const auto shape = node.input_shape(i); shape && shape->rank() != q->rank())
      return concat("input ", i, " has rank ", shape->rank(), ", Q ", q->rank());
  if (q->rank() != 3 && q->rank() != 4) return concat("Q has rank ", q->rank(), "; 3 or 4 is required");
  if (q->rank() == 3 && node.get<int64_t>("q_num_heads", 0) <= 0) return "Q has rank 3 and q_num_heads is absent";
  if (q->rank() == 3 && node.get<int64_t>("kv_num_heads", 0) <= 0) return "Q has rank 3 and kv_num_heads is absent";
  for (const auto& [shape, heads] : {std::pair{q, "q_num_heads"}, std::pair{v, "kv_num_heads"}}) {
    if (!shape) continue;
    const int64_t last = (*shape)[shape->rank() - 1];
    const int64_t size = shape->rank() == 3 ? last / node.get<int64_t>(heads, 1) : last;
    if (size > kMaxHeadSize) return concat("the head size is ", size, "; at most ", kMaxHeadSize, " is supported");
  }
  if (!node.has_input(3)) return "";
  // Opset 24 lets a mask end before the last key; the launch knows broadcasting only.
  const auto mask = node.input_shape(3), k = node.input_shape(1);
  if (mask && k) {
    const int64_t m = mask->rank() ? (*mask)[mask->rank() - 1] : 1, t_length = (*k)[k->rank() - 2];
    if (m > 1 && t_length >= 0 && m != t_length) return concat("the mask has ", m, " keys and K ", t_length);
  }
  return mask_type_reason(node.input_dtype(3), t, true);
}

class OnnxAttention : public Op {
 public:
  explicit OnnxAttention(const NodeView& node)
      : q_heads_(node.get<int64_t>("q_num_heads", 0)),
        kv_heads_(node.get<int64_t>("kv_num_heads", 0)),
        scale_(node.get<float>("scale", 0.f)),
        has_scale_(node.find("scale", &scale_)),
        causal_(node.get<int64_t>("is_causal", 0) != 0) {}

  void compute(OpContext& ctx) override {
    const Tensor q = ctx.input(0), k = ctx.input(1), v = ctx.input(2);
    const int rank = q.shape.rank();
    require((rank == 3 || rank == 4) && k.shape.rank() == rank && v.shape.rank() == rank, "Q, K and V have shapes ",
            q.shape.to_string(), ", ", k.shape.to_string(), ", ", v.shape.to_string(),
            "; rank 3 or 4 is required of all");
    const Heads hq = heads_of(q, q_heads_, "Q"), hk = heads_of(k, kv_heads_, "K"), hv = heads_of(v, kv_heads_, "V");
    require(k.shape[0] == q.shape[0] && v.shape[0] == q.shape[0] && hk.rows == hv.rows && hk.heads == hv.heads &&
                hk.size == hq.size && hk.heads > 0 && hq.heads % hk.heads == 0,
            "the shapes of Q ", q.shape.to_string(), ", K ", k.shape.to_string(), " and V ", v.shape.to_string(),
            " do not fit together");
    AttentionParams p{.q = q.data, .k = k.data, .v = v.data, .causal = causal_, .masked_rows_zero = true};
    p.batch = to_int(q.shape[0]);
    p.heads = to_int(hq.heads);
    p.kv_heads = to_int(hk.heads);
    p.s = to_int(hq.rows);
    p.t = to_int(hk.rows);
    p.head_size = to_int(hq.size);
    p.v_head_size = to_int(hv.size);
    p.scale = has_scale_ ? scale_ : 1.f / std::sqrt(static_cast<float>(hq.size));
    p.q_strides = hq.strides;
    p.k_strides = hk.strides;
    p.v_strides = hv.strides;
    Dims out = q.shape;
    if (rank == 3) {
      out[2] = hq.heads * hv.size;
      p.y_strides = interleaved_heads(hq.rows, out[2], hv.size);
    } else {
      out[3] = hv.size;
      p.y_strides = separate_heads(hq.heads, hq.rows, hv.size);
    }
    if (ctx.has_input(3)) set_mask(p, ctx.input(3));
    run_attention(ctx, p, ctx.output(0, out));
  }

 private:
  struct Heads {
    int64_t heads, rows, size;
    HeadStrides strides;
  };

  static Heads heads_of(const Tensor& x, int64_t heads, const char* name) {
    if (x.shape.rank() == 4) {
      return {x.shape[1], x.shape[2], x.shape[3], separate_heads(x.shape[1], x.shape[2], x.shape[3])};
    }
    require(heads > 0 && x.shape[2] % heads == 0, name, " has shape ", x.shape.to_string(), ", which ", heads,
            " heads do not divide");
    return {heads, x.shape[1], x.shape[2] / heads, interleaved_heads(x.shape[1], x.shape[2], x.shape[2] / heads)};
  }

  int64_t q_heads_, kv_heads_;
  float scale_;
  bool has_scale_;
  bool causal_;
};

const Register attention{{.type = "Attention", .since = 23, .supports = supports, .create = make_op<OnnxAttention>}};

}  // namespace
}  // namespace cuvil
