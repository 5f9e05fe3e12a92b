// com.microsoft MultiHeadAttention without projection bias, padding mask and cache.
#include <cmath>

#include "ops/attention_operands.h"
#include "ops/op.h"

namespace cuvil {
namespace {

constexpr int kAttentionBias = 5;

std::string supports(const NodeView& node) {
  const DType t = node.input_dtype(0);
  if (t != DType::kF32 && t != DType::kF16 && t != DType::kBF16) {
    return concat("input 0 is ", name_of(t), "; f32, f16 or bf16 is required");
  }
  for (int i = 3; i < node.num_inputs(); ++i) {
    if (i != kAttentionBias && node.has_input(i)) {
      return concat("input ", i, " (projection bias, padding mask or cache) is given; it is not supported");
    }
  }
  for (int i = 1; i < node.num_outputs(); ++i) {
    if (node.has_output(i)) return concat("output ", i, " is wanted; only output 0 is computed");
  }
  const auto q = node.input_shape(0), k = node.input_shape(1);
  if (!q || (q->rank() != 3 && q->rank() != 5)) return "the query's rank is not 3 or 5";
  if ((q->rank() == 5) == node.has_input(1)) return "a packed query stands alone, another needs a key";
  if (q->rank() == 3 && (!k || k->rank() < 3 || k->rank() > 5)) return "the key's rank is not 3, 4 or 5";
  if (q->rank() == 3 && (k->rank() == 5) == node.has_input(2))
    return "a packed key stands alone, another needs a value";
  if (node.get<int64_t>("unidirectional", 0) != 0 && q->rank() == 3) {
    // ONNX Runtime's own kernels disagree about which keys the last query sees when the lengths differ.
    const int64_t t_length = (*k)[k->rank() == 4 ? 2 : 1];
    if ((*q)[1] < 0 || (*q)[1] != t_length) return "unidirectional is set and the lengths are not known to be equal";
  }
  const int64_t heads = node.get<int64_t>("num_heads", 0);
  if (heads <= 0) return concat("num_heads is ", heads);
  const int64_t size = q->rank() == 5 ? (*q)[4] : (*q)[2] / heads;
  if (size > kMaxHeadSize) return concat("the head size is ", size, "; at most ", kMaxHeadSize, " is supported");
  return node.has_input(kAttentionBias) ? mask_type_reason(node.input_dtype(kAttentionBias), t, false) : "";
}

class MultiHeadAttention : public Op {
 public:
  explicit MultiHeadAttention(const NodeView& node)
      : heads_(to_int(node.get<int64_t>("num_heads", 0))),
        scale_(node.get<float>("scale", 0.f)),
        causal_(node.get<int64_t>("unidirectional", 0) != 0) {}

  void compute(OpContext& ctx) override {
    const Tensor q = ctx.input(0);
    const int64_t batch = q.shape[0], s = q.shape[1];
    View query, key, value;
    if (q.shape.rank() == 5) {
      query = part(q, 0, "query"), key = part(q, 1, "query"), value = part(q, 2, "query");
    } else {
      const Tensor k = ctx.input(1);
      query = rows(q, "query");
      key = k.shape.rank() == 5 ? part(k, 0, "key") : rows(k, "key");
      value = k.shape.rank() == 5 ? part(k, 1, "key") : rows(ctx.input(2), "value");
    }
    require(key.batch == batch && value.batch == batch && key.rows == value.rows && key.size == query.size,
            "query, key and value do not fit together: batches ", batch, ", ", key.batch, ", ", value.batch,
            ", rows of key ", key.rows, " and value ", value.rows, ", head sizes ", query.size, " and ", key.size);
    AttentionParams p{
        .q = query.data, .k = key.data, .v = value.data, .heads = heads_, .kv_heads = heads_, .causal = causal_};
    p.q_strides = query.strides;
    p.k_strides = key.strides;
    p.v_strides = value.strides;
    p.batch = to_int(batch);
    p.s = to_int(s);
    p.t = to_int(key.rows);
    p.head_size = to_int(query.size);
    p.v_head_size = to_int(value.size);
    p.scale = scale_ != 0 ? scale_ : 1.f / std::sqrt(static_cast<float>(query.size));
    p.y_strides = interleaved_heads(s, heads_ * value.size, value.size);
    if (ctx.has_input(kAttentionBias)) set_mask(p, ctx.input(kAttentionBias));
    run_attention(ctx, p, ctx.output(0, Dims{batch, s, heads_ * value.size}));
  }

 private:
  struct View {
    const void* data;
    int64_t batch, rows, size;
    HeadStrides strides;
  };

  // [B, rows, N * H], or [B, N, rows, H].
  View rows(const Tensor& x, const char* name) const {
    const int rank = x.shape.rank();
    require(rank == 3 ? x.shape[2] % heads_ == 0 : rank == 4 && x.shape[1] == heads_, "the ", name, " has shape ",
            x.shape.to_string(), "; [B,rows,N*H] or [B,N,rows,H] with ", heads_, " heads is required");
    if (rank == 3) {
      const int64_t size = x.shape[2] / heads_;
      return {x.data, x.shape[0], x.shape[1], size, interleaved_heads(x.shape[1], x.shape[2], size)};
    }
    return {x.data, x.shape[0], x.shape[2], x.shape[3], separate_heads(heads_, x.shape[2], x.shape[3])};
  }

  // Part i of [B, rows, N, parts, H].
  View part(const Tensor& x, int64_t i, const char* name) const {
    const Dims& d = x.shape;
    require(d.rank() == 5 && d[2] == heads_ && i < d[3], "the packed ", name, " has shape ", d.to_string(),
            "; [B,rows,", heads_, ",parts,H] is required");
    const char* data = x.as<char>() + i * d[4] * static_cast<int64_t>(size_of(x.dtype));
    return {data, d[0], d[1], d[4], {d[1] * d[2] * d[3] * d[4], d[2] * d[3] * d[4], d[3] * d[4]}};
  }

  int heads_;
  float scale_;
  bool causal_;
};

const Register multi_head_attention{{.domain = "com.microsoft",
                                     .type = "MultiHeadAttention",
                                     .supports = supports,
                                     .create = make_op<MultiHeadAttention>}};

}  // namespace
}  // namespace cuvil
