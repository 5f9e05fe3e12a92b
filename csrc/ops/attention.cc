// cuvil::Attention: attention over packed or separate projections, perhaps behind keys and values of earlier tokens.
#include "ops/attention_cache.h"
#include "ops/attention_operands.h"
#include "ops/op.h"

namespace cuvil {
namespace {

constexpr int kMask = 3, kPastKey = 4, kPastValue = 5;  // inputs
constexpr int kPresentKey = 1, kPresentValue = 2;       // outputs

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
  for (int i : {kPastKey, kPastValue}) {
    if (node.has_input(i) != node.has_input(kPastKey)) return "one of past_key and past_value is absent";
    if (node.has_input(i) && node.input_dtype(i) != t)
      return concat("input ", i, " is not ", name_of(t), " as input 0");
    if (node.has_input(i) && node.get<int64_t>("causal", 0) != 0) return "causal is set, and a past is given";
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
  return node.has_input(kMask) ? mask_type_reason(node.input_dtype(kMask), t, true) : "";
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
    p.s = to_int(s);
    p.head_size = to_int(size);
    p.q_strides = interleaved_heads(s, row, size);
    HeadView k, v;
    if (packed_) {
      const auto head = [&](int64_t i) { return q.as<char>() + i * size * static_cast<int64_t>(size_of(q.dtype)); };
      k = {head(heads_), kv_heads_, s, size, p.q_strides};
      v = {head(heads_ + kv_heads_), kv_heads_, s, size, p.q_strides};
    } else {
      const Tensor keys = ctx.input(1), values = ctx.input(2);
      k = heads_of(keys, "K");
      v = heads_of(values, "V");
      require(keys.shape[0] == batch && values.shape[0] == batch && k.rows == v.rows && k.size == size,
              "Q, K and V have shapes ", q.shape.to_string(), ", ", keys.shape.to_string(), " and ",
              values.shape.to_string(), "; batches, head sizes of Q and K, and lengths of K and V must be equal");
    }
    if (ctx.has_input(kPastKey)) append(ctx, batch, q.dtype, k, v);
    p.k = k.data;
    p.v = v.data;
    p.k_strides = k.strides;
    p.v_strides = v.strides;
    p.t = to_int(k.rows);
    p.v_head_size = to_int(v.size);
    const int64_t out_row = int64_t{heads_} * p.v_head_size;
    p.y_strides = interleaved_heads(s, out_row, p.v_head_size);
    if (ctx.has_input(kMask)) set_mask(p, ctx.input(kMask));
    run_attention(ctx, p, ctx.output(0, Dims{batch, s, out_row}));
  }

 private:
  // Of K or V: [B, T, G * H], or [B, G, T, H] as caches are.
  HeadView heads_of(const Tensor& x, const char* name) const {
    const Dims& d = x.shape;
    require(d.rank() == 4 ? d[1] == kv_heads_ : d.rank() == 3 && d[2] % kv_heads_ == 0, name, " has shape ",
            d.to_string(), "; [B,T,", kv_heads_, "*H] or [B,", kv_heads_, ",T,H] is required");
    if (d.rank() == 4) return separate_view(x);
    const int64_t size = d[2] / kv_heads_;
    return {x.data, kv_heads_, d[1], size, interleaved_heads(d[1], d[2], size)};
  }

  // Makes K and V those of the past and the new ones together, which are outputs.
  void append(OpContext& ctx, int64_t batch, DType dtype, HeadView& k, HeadView& v) const {
    const int64_t held = ctx.input(kPastKey).shape.rank() == 4 ? ctx.input(kPastKey).shape[2] : 0;
    CacheAppend append{.batch = batch, .past = held, .rows = k.rows, .capacity = held + k.rows, .dtype = dtype};
    for (auto& [view, input, output] : {std::tuple<HeadView&, int, int>{k, kPastKey, kPresentKey},
                                        std::tuple<HeadView&, int, int>{v, kPastValue, kPresentValue}}) {
      const Tensor past = ctx.input(input);
      const Dims before{batch, kv_heads_, held, view.size}, after{batch, kv_heads_, append.capacity, view.size};
      require(past.shape == before, "input ", input, " has the shape ", past.shape.to_string(), "; ",
              before.to_string(), " is required");
      append.add(ctx, past, view, ctx.has_output(output) ? ctx.output(output, after) : scratch(ctx, dtype, after));
    }
    append.run(ctx);
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
