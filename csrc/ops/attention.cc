// cuvil::Attention: encoder attention over packed or separate projections.
#include "ops/attention_operands.h"
#include "ops/op.h"

namespace cuvil {
namespace {

// Heads of K and V; the attribute's 0 stands for as many as Q has.
int64_t kv_heads_of(const NodeView& node, int64_t heads) {
  const int64_t given = node.get<int64_t>("kv_num_heads", 0);
  return given != 0 ? given : heads;
}

std::string supports(const NodeView& node) {
  const DType t = node.input_dtype(0);
  if (t != DType::kF32 && t != DType::kF16 && t != DType::kBF16) {
    return concat("input 0 is ", name_of(t), "; f32, f16 or bf16 is required");
  }
  const std::string layout = node.get<std::string>("layout", "");
  if (layout != "packed" && layout != "separate") {
    return concat("layout is '", layout, "'; 'packed' or 'separate' is required");
  }
  for (int i = 1; i <= 2; ++i) {
    if (node.has_input(i) != (layout == "separate")) {
      return concat("input ", i, node.has_input(i) ? " is given" : " is absent", " with layout ", layout);
    }
    if (node.has_input(i) && node.input_dtype(i) != t)
      return concat("input ", i, " is not ", name_of(t), " as input 0");
  }
  const int64_t heads = node.get<int64_t>("num_heads", 0), kv_heads = kv_heads_of(node, heads);
  if (heads <= 0 || kv_heads <= 0 || heads % kv_heads != 0) {
    return concat("num_heads is ", heads, " and kv_num_heads ", kv_heads, "; a multiple is required");
  }
  if (const auto q = node.input_shape(0); q && q->rank() != 3)
    return concat("input 0 has rank ", q->rank(), "; 3 is required");
  if (const auto q = node.input_shape(0); q && (*q)[2] > 0) {
    const int64_t head = (*q)[2] / (layout == "packed" ? heads + 2 * kv_heads : heads);
    if (head > kMaxHeadSize) return concat("the head size is ", head, "; at most ", kMaxHeadSize, " is supported");
  }
  return node.has_input(3) ? mask_type_reason(node.input_dtype(3), t, true) : "";
}

class Attention : public Op {
 public:
  explicit Attention(const NodeView& node)
      : heads_(to_int(node.get<int64_t>("num_heads", 0))),
        kv_heads_(to_int(kv_heads_of(node, heads_))),
        scale_(node.get<float>("scale", 1)),
        causal_(node.get<int64_t>("causal", 0) != 0),
        packed_(node.get<std::string>("layout", "") == "packed"),
        masked_rows_zero_(node.get<int64_t>("masked_rows_zero", 0) != 0) {}

  void compute(OpContext& ctx) override {
    const Tensor q = ctx.input(0);
    require(q.shape.rank() == 3, "input 0 has shape ", q.shape.to_string(), "; rank 3 is required");
    const int64_t batch = q.shape[0], s = q.shape[1], row = q.shape[2];
    const int64_t heads_in_row = packed_ ? heads_ + 2 * kv_heads_ : heads_;
    require(row % heads_in_row == 0, "input 0 has shape ", q.shape.to_string(), ", which ", heads_in_row,
            " heads do not divide");
    const int64_t size = row / heads_in_row;
    AttentionParams p{.q = q.data,
                      .heads = heads_,
                      .kv_heads = kv_heads_,
                      .scale = scale_,
                      .causal = causal_,
                      .masked_rows_zero = masked_rows_zero_};
    p.batch = to_int(batch);
    p.s = p.t = to_int(s);
    p.head_size = p.v_head_size = to_int(size);
    p.q_strides = interleaved_heads(s, row, size);
    if (packed_) {
      const auto head = [&](int64_t i) { return q.as<char>() + i * size * static_cast<int64_t>(size_of(q.dtype)); };
      p.k = head(heads_);
      p.v = head(heads_ + kv_heads_);
      p.k_strides = p.v_strides = p.q_strides;
    } else {
      const Tensor k = ctx.input(1), v = ctx.input(2);
      const Heads keys = heads_of(k, "K"), values = heads_of(v, "V");
      require(k.shape[0] == batch && v.shape[0] == batch && keys.rows == values.rows && keys.size == size,
              "Q, K and V have shapes ", q.shape.to_string(), ", ", k.shape.to_string(), " and ", v.shape.to_string(),
              "; batches, head sizes of Q and K, and lengths of K and V must be equal");
      p.t = to_int(keys.rows);
      p.v_head_size = to_int(values.size);
      p.k = k.data;
      p.v = v.data;
      p.k_strides = keys.strides;
      p.v_strides = values.strides;
    }
    const int64_t out_row = int64_t{heads_} * p.v_head_size;
    p.y_strides = interleaved_heads(s, out_row, p.v_head_size);
    if (ctx.has_input(3)) set_mask(p, ctx.input(3));
    run_attention(ctx, p, ctx.output(0, Dims{batch, s, out_row}));
  }

 private:
  struct Heads {
    int64_t rows, size;
    HeadStrides strides;
  };

  // Of K or V: [B, T, G * H], or [B, G, T, H] as caches are.
  Heads heads_of(const Tensor& x, const char* name) const {
    const Dims& d = x.shape;
    require(d.rank() == 4 ? d[1] == kv_heads_ : d.rank() == 3 && d[2] % kv_heads_ == 0, name, " has shape ",
            d.to_string(), "; [B,T,", kv_heads_, "*H] or [B,", kv_heads_, ",T,H] is required");
    if (d.rank() == 4) return {d[2], d[3], separate_heads(kv_heads_, d[2], d[3])};
    const int64_t size = d[2] / kv_heads_;
    return {d[1], size, interleaved_heads(d[1], d[2], size)};
  }

  int heads_;
  int kv_heads_;
  float scale_;
  bool causal_;
  bool packed_;
  bool masked_rows_zero_;
};

const Register attention{{.domain = "cuvil", .type = "Attention", .supports = supports, .create = make_op<Attention>}};

}  // namespace
}  // namespace cuvil
