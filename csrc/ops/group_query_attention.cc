// com.microsoft GroupQueryAttention: attention of a language model's decoder, with rotation of queries and keys and a
// cache that may be one buffer before and after ("past_present_share_buffer"): the new rows are appended in place then.
//
// The number of keys of each batch entry is read on the device, so that one captured graph serves every step of a
// generation; the host's total_sequence_length only tells a first prompt from a continuation, and sizes new buffers.
#include <algorithm>
#include <cmath>

#include "ops/attention_cache.h"
#include "ops/attention_operands.h"
#include "ops/index_guard.h"
#include "ops/params.h"

namespace cuvil {
namespace {

enum Input {
  kQuery,
  kKey,
  kValue,
  kPastKey,
  kPastValue,
  kLengths,
  kTotal,
  kCos,
  kSin,
  kPositions,
  kBias,
  kSink,
  kFirstUnserved
};

std::string type_reason(const NodeView& node) {
  const DType t = node.input_dtype(kQuery);
  if (t != DType::kF32 && t != DType::kF16 && t != DType::kBF16)
    return concat("input 0 is ", name_of(t), "; f32, f16 or bf16 is required");
  for (int i : {kKey, kValue, kPastKey, kPastValue, kCos, kSin, kSink}) {
    if (node.has_input(i) && node.input_dtype(i) != t)
      return concat("input ", i, " is ", name_of(node.input_dtype(i)), ", input 0 ", name_of(t));
  }
  if (node.has_input(kPositions) && node.input_dtype(kPositions) != DType::kI64)
    return concat("the positions are ", name_of(node.input_dtype(kPositions)), "; i64 is required");
  return node.has_input(kBias) ? mask_type_reason(node.input_dtype(kBias), t, false) : "";
}

std::string supports(const NodeView& node) {
  if (std::string reason = type_reason(node); !reason.empty()) return reason;
  for (int i = kFirstUnserved; i < node.num_inputs(); ++i) {
    if (node.has_input(i)) return concat("input ", i, " (scales of a quantized cache, norms of heads) is given");
  }
  if (node.has_output(3)) return "output 3 (scores) is wanted";
  if (node.get<int64_t>("sliding_window_cache", 0) != 0) return "sliding_window_cache is set";
  for (const char* quantized : {"k_quant_type", "v_quant_type"}) {
    if (const auto type = node.get<std::string>(quantized, "NONE"); type != "NONE" && !type.empty())
      return concat(quantized, " is ", type);
  }
  if (!node.has_input(kLengths) || !node.has_input(kTotal)) return "seqlens_k or total_sequence_length is absent";
  if (node.has_input(kKey) != node.has_input(kValue)) return "one of key and value is absent";
  if (node.has_input(kPastKey) != node.has_input(kPastValue)) return "one of past_key and past_value is absent";
  const int64_t heads = node.get<int64_t>("num_heads", 0), kv_heads = node.get<int64_t>("kv_num_heads", 0);
  if (heads <= 0 || kv_heads <= 0 || heads % kv_heads != 0)
    return concat("num_heads is ", heads, " and kv_num_heads ", kv_heads, "; a multiple is required");
  if (const auto q = node.input_shape(kQuery); q && q->rank() == 3 && (*q)[2] > 0) {
    const int64_t size = (*q)[2] / (node.has_input(kKey) ? heads : heads + 2 * kv_heads);
    if (size > kMaxHeadSize) return concat("the head size is ", size, "; at most ", kMaxHeadSize, " is supported");
  }
  if (node.get<int64_t>("do_rotary", 0) != 0 && !(node.has_input(kCos) && node.has_input(kSin)))
    return "do_rotary is set, and cosines or sines are absent";
  if (node.get<float>("softcap", 0.f) < 0.f) return "softcap is negative";
  const int64_t window = node.get<int64_t>("local_window_size", -1);
  if (window < -1 || window == 0 || (window > 0 && node.get<int64_t>("causal", 1) == 0))
    return concat("local_window_size is ", window);
  return "";
}

class GroupQueryAttention : public Op {
 public:
  explicit GroupQueryAttention(const NodeView& node)
      : heads_(node.get<int64_t>("num_heads", 0)),
        kv_heads_(node.get<int64_t>("kv_num_heads", 0)),
        window_(node.get<int64_t>("local_window_size", -1)),
        scale_(node.get<float>("scale", 0.f)),
        softcap_(node.get<float>("softcap", 0.f)),
        causal_(node.get<int64_t>("causal", 1) != 0),
        rotary_(node.get<int64_t>("do_rotary", 0) != 0),
        interleaved_(node.get<int64_t>("rotary_interleaved", 0) != 0),
        smooth_(node.get<int64_t>("smooth_softmax", 0) > 0) {}

  void compute(OpContext& ctx) override {
    const Tensor query = ctx.input(kQuery), lengths = ctx.input(kLengths);
    require(query.shape.rank() == 3, "the query has shape ", query.shape.to_string(), "; rank 3 is required");
    const int64_t batch = query.shape[0], rows = query.shape[1];
    HeadView q, k, v;
    split(ctx, query, q, k, v);
    require(lengths.dtype == DType::kI32 && lengths.size() == batch, "seqlens_k has the shape ",
            lengths.shape.to_string(), "; ", batch, " of i32 are required");
    const int64_t total = read_ints(ctx.input(kTotal)).at(0);
    const bool prompt = total == rows;
    const Tensor past_key = past(ctx, kPastKey, batch, k.size), past_value = past(ctx, kPastValue, batch, v.size);
    const int64_t held = past_key.shape[2];
    require(past_value.shape[2] == held && total >= rows && (total <= held || ctx.has_input(kPastKey) || prompt),
            "total_sequence_length is ", total, " with ", rows, " new rows and a past of the shape ",
            past_key.shape.to_string());

    CacheAppend append{.batch = batch, .past = held, .rows = rows, .capacity = std::max(held, total)};
    append.dtype = query.dtype;
    append.lengths = lengths.as<int32_t>();
    append.empty = prompt;
    append.params.out_of_range =
        guard_.arm("a sequence's length or a position", "dropped that token's key or rotation");
    HeadRows& new_keys = append.add(ctx, past_key, k, present(ctx, 1, batch, append.capacity, k.size, query.dtype));
    new_keys.rotate = rotary_;
    append.add(ctx, past_value, v, present(ctx, 2, batch, append.capacity, v.size, query.dtype));
    if (rotary_) rotate(ctx, append.params, q, prompt, query.dtype, batch);
    append.run(ctx);

    AttentionParams p{.q = q.data, .k = k.data, .v = v.data, .softcap = softcap_, .causal = causal_};
    p.q_strides = q.strides;
    p.k_strides = k.strides;
    p.v_strides = v.strides;
    p.batch = to_int(batch);
    p.heads = to_int(heads_);
    p.kv_heads = to_int(kv_heads_);
    p.s = to_int(rows);
    p.t = to_int(append.capacity);
    p.head_size = to_int(q.size);
    p.v_head_size = to_int(v.size);
    p.scale = scale_ != 0 ? scale_ : 1.f / std::sqrt(static_cast<float>(q.size));
    p.masked_rows_zero = true;
    p.lengths = lengths.data;
    p.length_bias = 1;
    p.offset_by_length = !prompt;
    if (window_ > 0) p.left = to_int(std::min<int64_t>(window_, INT_MAX)) - 1;
    p.sink = smooth_ || ctx.has_input(kSink);
    if (ctx.has_input(kSink)) p.sinks = sinks(ctx);
    if (ctx.has_input(kBias)) {
      p.t = to_int(total);  // the bias has no column for the rows of the cache that are not filled yet
      set_mask(p, ctx.input(kBias));
    }
    p.y_strides = interleaved_heads(rows, heads_ * v.size, v.size);
    run_attention(ctx, p, ctx.output(0, Dims{batch, rows, heads_ * v.size}));
  }

 private:
  // Heads of the query, and of the key and the value that may stand behind it in each row.
  void split(OpContext& ctx, const Tensor& query, HeadView& q, HeadView& k, HeadView& v) const {
    const bool packed = !ctx.has_input(kKey);
    const int64_t rows = query.shape[1], row = query.shape[2], in_row = packed ? heads_ + 2 * kv_heads_ : heads_;
    require(row % in_row == 0, "the query has the shape ", query.shape.to_string(), ", which ", in_row,
            " heads do not divide");
    const int64_t size = row / in_row;
    q = {query.data, heads_, rows, size, interleaved_heads(rows, row, size)};
    if (packed) {
      const auto head = [&](int64_t i) {
        return query.as<char>() + i * size * static_cast<int64_t>(size_of(query.dtype));
      };
      k = {head(heads_), kv_heads_, rows, size, q.strides};
      v = {head(heads_ + kv_heads_), kv_heads_, rows, size, q.strides};
      return;
    }
    const auto view = [&](int i) -> HeadView {
      const Tensor x = ctx.input(i);
      require(x.shape == (Dims{query.shape[0], rows, kv_heads_ * size}), "input ", i, " has the shape ",
              x.shape.to_string(), "; ", (Dims{query.shape[0], rows, kv_heads_ * size}).to_string(), " is required");
      return {x.data, kv_heads_, rows, size, interleaved_heads(rows, kv_heads_ * size, size)};
    };
    k = view(kKey);
    v = view(kValue);
  }

  // The cache as it comes, with 0 rows where there is none.
  Tensor past(OpContext& ctx, int i, int64_t batch, int64_t size) const {
    if (!ctx.has_input(i)) return {nullptr, DType::kUndefined, Dims{batch, kv_heads_, 0, size}};
    const Tensor x = ctx.input(i);
    require(x.shape.rank() == 4 && x.shape[0] == batch && x.shape[1] == kv_heads_ && x.shape[3] == size, "input ", i,
            " has the shape ", x.shape.to_string(), "; [", batch, ",", kv_heads_, ",rows,", size, "] is required");
    return x;
  }

  Tensor present(OpContext& ctx, int i, int64_t batch, int64_t rows, int64_t size, DType dtype) const {
    const Dims shape{batch, kv_heads_, rows, size};
    return ctx.has_output(i) ? ctx.output(i, shape) : scratch(ctx, dtype, shape);
  }

  // Has the query rotated, to a buffer of its own, as the keys are on their way.
  void rotate(OpContext& ctx, HeadRowsParams& p, HeadView& q, bool prompt, DType dtype, int64_t batch) const {
    const Tensor cos = ctx.input(kCos), sin = ctx.input(kSin);
    require(cos.shape.rank() == 2 && cos.shape == sin.shape && 2 * cos.shape[1] <= q.size, "cosines have shape ",
            cos.shape.to_string(), ", sines ", sin.shape.to_string(), "; [positions, at most ", q.size / 2,
            "] is required of both");
    p.cos = cos.data;
    p.sin = sin.data;
    p.cache_rows = cos.shape[0];
    p.rotary = to_int(2 * cos.shape[1]);
    p.interleaved = interleaved_;
    if (ctx.has_input(kPositions)) {
      const Tensor positions = ctx.input(kPositions);
      require(prompt ? positions.size() > 0 : positions.shape == (Dims{batch, q.rows}), "the positions have shape ",
              positions.shape.to_string(), "; [", batch, ",", q.rows, "] is required");
      p.positions = positions.as<int64_t>();
      p.one_position = prompt;  // of a first prompt only the first position is used
    }
    const Tensor rotated = scratch(ctx, dtype, Dims{batch, q.rows, heads_, q.size});
    HeadRows& part = p.parts[p.count++];
    part = {.x = q.data,
            .y = rotated.data,
            .x_strides = q.strides,
            .y_strides = interleaved_heads(q.rows, heads_ * q.size, q.size),
            .heads = to_int(heads_),
            .size = to_int(q.size),
            .rotate = true};
    q.data = rotated.data;
    q.strides = part.y_strides;
  }

  const void* sinks(OpContext& ctx) const {
    const Tensor x = ctx.input(kSink);
    require(x.size() == heads_, "head_sink has the shape ", x.shape.to_string(), "; [", heads_, "] is required");
    return x.data;
  }

  int64_t heads_, kv_heads_, window_;
  float scale_, softcap_;
  bool causal_, rotary_, interleaved_, smooth_;
  IndexGuard guard_;
};

// Not in place by ORT's choice: its shape inference gives a cache that grows the shape that it had before.
const Register group_query_attention{{.domain = "com.microsoft",
                                      .type = "GroupQueryAttention",
                                      .supports = supports,
                                      .create = make_op<GroupQueryAttention>,
                                      .cpu_inputs = {kTotal}}};

}  // namespace
}  // namespace cuvil
