// com.microsoft MultiHeadAttention, with projection bias, padding mask and a cache that grows by copying.
#include <algorithm>
#include <cmath>
#include <tuple>

#include "kernels/key_padding.cuh"
#include "ops/attention_cache.h"
#include "ops/attention_operands.h"
#include "ops/op.h"

namespace cuvil {
namespace {

constexpr int kProjectionBias = 3, kPadding = 4, kAttentionBias = 5, kPastKey = 6, kPastValue = 7;  // inputs
constexpr int kPresentKey = 1, kPresentValue = 2, kScores = 3;                                      // outputs

// The types of all inputs, and which of them may be there.
std::string inputs_reason(const NodeView& node) {
  const DType t = node.input_dtype(0);
  if (t != DType::kF32 && t != DType::kF16 && t != DType::kBF16) {
    return concat("input 0 is ", name_of(t), "; f32, f16 or bf16 is required");
  }
  for (int i : {1, 2, kProjectionBias, kPastKey, kPastValue}) {
    if (node.has_input(i) && node.input_dtype(i) != t)
      return concat("input ", i, " is ", name_of(node.input_dtype(i)), ", input 0 ", name_of(t));
  }
  for (int i = kPastValue + 1; i < node.num_inputs(); ++i) {
    if (node.has_input(i)) return concat("input ", i, " (of a shared cache buffer) is given; it is not supported");
  }
  if (node.has_input(kPastKey) != node.has_input(kPastValue)) return "one of past_key and past_value is absent";
  if (node.has_input(kPadding) && node.input_dtype(kPadding) != DType::kI32)
    return concat("the padding mask is ", name_of(node.input_dtype(kPadding)), "; i32 is required");
  if (node.has_output(kScores)) return "output 3 (scores) is wanted";
  return node.has_input(kAttentionBias) ? mask_type_reason(node.input_dtype(kAttentionBias), t, false) : "";
}

std::string supports(const NodeView& node) {
  if (std::string reason = inputs_reason(node); !reason.empty()) return reason;
  const auto q = node.input_shape(0), k = node.input_shape(1);
  if (!q || (q->rank() != 3 && q->rank() != 5)) return "the query's rank is not 3 or 5";
  if ((q->rank() == 5) == node.has_input(1)) return "a packed query stands alone, another needs a key";
  if (q->rank() == 3 && (!k || k->rank() < 3 || k->rank() > 5)) return "the key's rank is not 3, 4 or 5";
  if (q->rank() == 3 && (k->rank() == 5) == node.has_input(2))
    return "a packed key stands alone, another needs a value";
  const bool plain = q->rank() == 3 && k->rank() == 3;
  if (!plain && (node.has_input(kProjectionBias) || node.has_input(kPastKey) || node.has_output(kPresentKey)))
    return "a projection bias or a cache is given with a packed or transposed key";
  const auto padding = node.input_shape(kPadding);
  if (node.has_input(kPadding) && (!padding || padding->rank() < 1 || padding->rank() > 3))
    return "the padding mask's rank is not 1, 2 or 3";
  if (padding && padding->rank() == 1) {
    // [3 * batch + 2], positions of packed sequences, differs from [batch] by its length only.
    if ((*padding)[0] < 0 || (*padding)[0] != (*q)[0])
      return "the padding mask is not known to hold one length a batch entry";
  }
  if (node.get<int64_t>("unidirectional", 0) != 0 && q->rank() == 3) {
    // ONNX Runtime's own kernels disagree about which keys the last query sees when the lengths differ.
    const int64_t t_length = (*k)[k->rank() == 4 ? 2 : 1];
    if ((*q)[1] < 0 || (*q)[1] != t_length) return "unidirectional is set and the lengths are not known to be equal";
  }
  const int64_t heads = node.get<int64_t>("num_heads", 0);
  if (heads <= 0) return concat("num_heads is ", heads);
  const int64_t size = q->rank() == 5 ? (*q)[4] : (*q)[2] / heads;
  if (size > kMaxHeadSize) return concat("the head size is ", size, "; at most ", kMaxHeadSize, " is supported");
  return "";
}

class MultiHeadAttention : public Op {
 public:
  explicit MultiHeadAttention(const NodeView& node)
      : heads_(to_int(node.get<int64_t>("num_heads", 0))),
        scale_(node.get<float>("scale", 0.f)),
        hidden_(node.get<float>("mask_filter_value", -10000.f)),
        causal_(node.get<int64_t>("unidirectional", 0) != 0) {}

  void compute(OpContext& ctx) override {
    const Tensor q = ctx.input(0);
    const int64_t batch = q.shape[0], s = q.shape[1];
    HeadView query, key, value;
    if (q.shape.rank() == 5) {
      query = part(q, batch, 0, "query"), key = part(q, batch, 1, "query"), value = part(q, batch, 2, "query");
    } else {
      const Tensor k = ctx.input(1);
      query = rows(q, batch, "query");
      key = k.shape.rank() == 5 ? part(k, batch, 0, "key") : rows(k, batch, "key");
      value = k.shape.rank() == 5 ? part(k, batch, 1, "key") : rows(ctx.input(2), batch, "value");
    }
    require(key.rows == value.rows && key.size == query.size, "query, key and value do not fit together: rows of key ",
            key.rows, " and value ", value.rows, ", head sizes ", query.size, " and ", key.size);
    AttentionParams p{.heads = heads_, .kv_heads = heads_, .causal = causal_};
    p.dtype = q.dtype;
    p.batch = to_int(batch);
    p.s = to_int(s);
    p.head_size = to_int(query.size);
    p.v_head_size = to_int(value.size);
    p.scale = scale_ != 0 ? scale_ : 1.f / std::sqrt(static_cast<float>(query.size));
    prepare(ctx, p, query, key, value);
    p.q = query.data;
    p.k = key.data;
    p.v = value.data;
    p.q_strides = query.strides;
    p.k_strides = key.strides;
    p.v_strides = value.strides;
    p.t = to_int(key.rows);
    p.y_strides = interleaved_heads(s, heads_ * value.size, value.size);
    if (ctx.has_input(kAttentionBias)) set_mask(p, ctx.input(kAttentionBias));
    if (ctx.has_input(kPadding)) hide_padding(ctx, p, ctx.input(kPadding));
    run_attention(ctx, p, ctx.output(0, Dims{batch, s, heads_ * value.size}));
  }

 private:
  // Adds the projection bias, and appends keys and values to what the cache holds.
  void prepare(OpContext& ctx, AttentionParams& p, HeadView& q, HeadView& k, HeadView& v) const {
    const bool biased = ctx.has_input(kProjectionBias), past = ctx.has_input(kPastKey);
    if (!biased && !past && !ctx.has_output(kPresentKey) && !ctx.has_output(kPresentValue)) return;
    const char* bias = nullptr;
    const int64_t hidden = heads_ * q.size, bytes = static_cast<int64_t>(size_of(p.dtype));
    if (biased) {
      const Tensor x = ctx.input(kProjectionBias);
      require(x.shape == (Dims{2 * hidden + heads_ * v.size}), "input 3 has the shape ", x.shape.to_string(), "; [",
              2 * hidden + heads_ * v.size, "] is required");
      bias = x.as<char>();
    }
    const int64_t held = past ? ctx.input(kPastKey).shape[2] : 0;
    CacheAppend append{.batch = p.batch, .past = held, .rows = k.rows, .capacity = held + k.rows, .dtype = p.dtype};
    p.offset = to_int(held);
    int64_t first = hidden;  // of the part's bias
    for (auto& [view, input, output] : {std::tuple<HeadView&, int, int>{k, kPastKey, kPresentKey},
                                        std::tuple<HeadView&, int, int>{v, kPastValue, kPresentValue}}) {
      const int64_t bias_at = first;
      first += hidden;
      if (!biased && !past && !ctx.has_output(output)) continue;
      const Dims shape{p.batch, heads_, append.capacity, view.size}, before_shape{p.batch, heads_, held, view.size};
      Tensor before;
      if (past) {
        before = ctx.input(input);
        require(before.shape == before_shape, "input ", input, " has the shape ", before.shape.to_string(), "; ",
                before_shape.to_string(), " is required");
      }
      HeadRows& rows = append.add(ctx, before, view,
                                  ctx.has_output(output) ? ctx.output(output, shape) : scratch(ctx, p.dtype, shape));
      if (biased) rows.bias = bias + bias_at * bytes;
    }
    append.run(ctx);
    if (biased) add_bias(ctx, p, q, bias);
  }

  // The query is not appended to anything, and may have another number of rows.
  static void add_bias(OpContext& ctx, const AttentionParams& p, HeadView& q, const void* bias) {
    const Tensor y = scratch(ctx, p.dtype, Dims{p.batch, q.rows, q.heads, q.size});
    HeadRowsParams rows{.count = 1, .dtype = p.dtype, .batch = p.batch, .rows = to_int(q.rows)};
    rows.parts[0] = {.x = q.data,
                     .y = y.data,
                     .x_strides = q.strides,
                     .y_strides = interleaved_heads(q.rows, q.heads * q.size, q.size),
                     .bias = bias,
                     .heads = to_int(q.heads),
                     .size = to_int(q.size)};
    CUVIL_CUDA(launch_head_rows(rows, ctx.stream()));
    q.data = y.data;
    q.strides = rows.parts[0].y_strides;
  }

  // Replaces the mask of p by one that also hides what `padding` does, as ONNX Runtime does: by a finite addend.
  void hide_padding(OpContext& ctx, AttentionParams& p, const Tensor& padding) const {
    KeyPaddingParams k{.mask = padding.as<int32_t>(), .bias = p.mask, .hidden = hidden_};
    const int rank = padding.shape.rank();
    const Dims wanted = rank == 1 ? Dims{p.batch} : rank == 2 ? Dims{p.batch, p.t} : Dims{p.batch, p.s, p.t};
    require(rank >= 1 && rank <= 3 && padding.shape == wanted, "the padding mask has the shape ",
            padding.shape.to_string(), "; ", wanted.to_string(), " is required");
    k.lengths = rank == 1;
    k.shape[0] = p.batch;
    k.shape[1] = k.shape[2] = 1;
    k.shape[3] = p.t;
    k.mask_strides[3] = 1;
    k.mask_strides[0] = p.t;
    if (rank == 3) {
      k.shape[2] = p.s;
      k.mask_strides[2] = p.t;
      k.mask_strides[0] = int64_t{p.s} * p.t;
    }
    if (p.mask) {
      k.bias_dtype = p.mask_dtype;
      std::copy(p.mask_strides, p.mask_strides + 4, k.bias_strides);
      k.shape[1] = p.mask_strides[1] ? p.heads : 1;
      if (p.mask_strides[2]) k.shape[2] = p.s;
    }
    const Tensor y = scratch(ctx, DType::kF32, Dims{k.shape[0], k.shape[1], k.shape[2], k.shape[3]});
    k.y = y.as<float>();
    CUVIL_CUDA(launch_key_padding(k, ctx.stream()));
    std::fill(p.mask_strides, p.mask_strides + 4, int64_t{0});
    set_mask(p, y);
  }

  // [B, rows, N * H], or [B, N, rows, H].
  HeadView rows(const Tensor& x, int64_t batch, const char* name) const {
    const int rank = x.shape.rank();
    require(x.shape[0] == batch && (rank == 3 ? x.shape[2] % heads_ == 0 : rank == 4 && x.shape[1] == heads_), "the ",
            name, " has shape ", x.shape.to_string(), "; [", batch, ",rows,N*H] or [", batch, ",N,rows,H] with ",
            heads_, " heads is required");
    if (rank == 4) return separate_view(x);
    const int64_t size = x.shape[2] / heads_;
    return {x.data, heads_, x.shape[1], size, interleaved_heads(x.shape[1], x.shape[2], size)};
  }

  // Part i of [B, rows, N, parts, H].
  HeadView part(const Tensor& x, int64_t batch, int64_t i, const char* name) const {
    const Dims& d = x.shape;
    require(d.rank() == 5 && d[0] == batch && d[2] == heads_ && i < d[3], "the packed ", name, " has shape ",
            d.to_string(), "; [", batch, ",rows,", heads_, ",parts,H] is required");
    const char* data = x.as<char>() + i * d[4] * static_cast<int64_t>(size_of(x.dtype));
    return {data, heads_, d[1], d[4], {d[1] * d[2] * d[3] * d[4], d[2] * d[3] * d[4], d[3] * d[4]}};
  }

  int heads_;
  float scale_, hidden_;
  bool causal_;
};

const Register multi_head_attention{{.domain = "com.microsoft",
                                     .type = "MultiHeadAttention",
                                     .supports = supports,
                                     .create = make_op<MultiHeadAttention>}};

}  // namespace
}  // namespace cuvil
