// Attention of the ONNX standard (opset 23 and later), with its cache, windows and intermediate scores. The standard
// gives 0 to a query that may see no key.
#include <algorithm>
#include <cmath>
#include <tuple>

#include "kernels/attention_scores.cuh"
#include "ops/attention_cache.h"
#include "ops/attention_operands.h"
#include "ops/op.h"

namespace cuvil {
namespace {

constexpr int kMask = 3, kPastKey = 4, kPastValue = 5, kLengths = 6;  // inputs
constexpr int kPresentKey = 1, kPresentValue = 2, kScores = 3;        // outputs

std::string type_reason(const NodeView& node) {
  const DType t = node.input_dtype(0);
  if (t != DType::kF32 && t != DType::kF16 && t != DType::kBF16) {
    return concat("input 0 is ", name_of(t), "; f32, f16 or bf16 is required");
  }
  for (int i : {1, 2, kPastKey, kPastValue}) {
    if (node.has_input(i) && node.input_dtype(i) != t)
      return concat("input ", i, " is ", name_of(node.input_dtype(i)), ", not ", name_of(t));
  }
  if (node.has_input(kLengths) && node.input_dtype(kLengths) != DType::kI64)
    return concat("input ", kLengths, " is ", name_of(node.input_dtype(kLengths)), "; i64 is required");
  return node.has_input(kMask) ? mask_type_reason(node.input_dtype(kMask), t, true) : "";
}

std::string supports(const NodeView& node) {
  if (std::string reason = type_reason(node); !reason.empty()) return reason;
  if (node.has_input(kPastKey) != node.has_input(kPastValue)) return "one of past_key and past_value is absent";
  if (node.has_input(kPastKey) && node.has_input(kLengths)) return "both a past and nonpad_kv_seqlen are given";
  if (node.get<float>("softcap", 0.f) < 0.f) return "softcap is negative";
  if (const auto mode = node.get<int64_t>("qk_matmul_output_mode", 0); mode < 0 || mode > 3)
    return concat("qk_matmul_output_mode is ", mode, "; 0 to 3 are known");
  if (const int64_t precision = node.get<int64_t>("softmax_precision", 1); precision == 11)
    return "softmax_precision is double";
  for (const char* window : {"left_window_size", "right_window_size"})
    if (const auto size = node.get<int64_t>(window, -1); size < -1) return concat(window, " is ", size);
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
  return "";
}

int window_of(const NodeView& node, const char* attr) {
  return static_cast<int>(std::min<int64_t>(node.get<int64_t>(attr, -1), INT_MAX));
}

class OnnxAttention : public Op {
 public:
  explicit OnnxAttention(const NodeView& node)
      : q_heads_(node.get<int64_t>("q_num_heads", 0)),
        kv_heads_(node.get<int64_t>("kv_num_heads", 0)),
        has_scale_(node.find("scale", &scale_)),
        softcap_(node.get<float>("softcap", 0.f)),
        causal_(node.get<int64_t>("is_causal", 0) != 0),
        left_(window_of(node, "left_window_size")),
        right_(window_of(node, "right_window_size")),
        stage_(static_cast<ScoreStage>(node.get<int64_t>("qk_matmul_output_mode", 0))) {}

  void compute(OpContext& ctx) override {
    const Tensor q = ctx.input(0), k = ctx.input(1), v = ctx.input(2);
    const int rank = q.shape.rank();
    require((rank == 3 || rank == 4) && k.shape.rank() == rank && v.shape.rank() == rank, "Q, K and V have shapes ",
            q.shape.to_string(), ", ", k.shape.to_string(), ", ", v.shape.to_string(),
            "; rank 3 or 4 is required of all");
    const HeadView hq = heads_of(q, q_heads_, "Q");
    HeadView hk = heads_of(k, kv_heads_, "K"), hv = heads_of(v, kv_heads_, "V");
    require(k.shape[0] == q.shape[0] && v.shape[0] == q.shape[0] && hk.rows == hv.rows && hk.heads == hv.heads &&
                hk.size == hq.size && hk.heads > 0 && hq.heads % hk.heads == 0,
            "the shapes of Q ", q.shape.to_string(), ", K ", k.shape.to_string(), " and V ", v.shape.to_string(),
            " do not fit together");
    AttentionParams p{.q = q.data, .softcap = softcap_, .causal = causal_, .masked_rows_zero = true};
    p.left = left_;
    p.right = right_;
    p.batch = to_int(q.shape[0]);
    p.heads = to_int(hq.heads);
    p.kv_heads = to_int(hk.heads);
    p.s = to_int(hq.rows);
    p.head_size = to_int(hq.size);
    p.v_head_size = to_int(hv.size);
    p.scale = has_scale_ ? scale_ : 1.f / std::sqrt(static_cast<float>(hq.size));
    p.dtype = q.dtype;
    p.q_strides = hq.strides;
    extend(ctx, p, hk, hv);
    p.k = hk.data;
    p.v = hv.data;
    p.k_strides = hk.strides;
    p.v_strides = hv.strides;
    const int64_t total = hk.rows;
    p.t = to_int(total);
    if (ctx.has_input(kLengths)) set_lengths(p, ctx.input(kLengths));
    if (ctx.has_input(kMask)) cover(p, ctx.input(kMask));
    Dims out = q.shape;
    if (rank == 3) {
      out[2] = hq.heads * hv.size;
      p.y_strides = interleaved_heads(hq.rows, out[2], hv.size);
    } else {
      out[3] = hv.size;
      p.y_strides = separate_heads(hq.heads, hq.rows, hv.size);
    }
    if (ctx.has_output(kScores)) {
      const Tensor scores = ctx.output(kScores, Dims{q.shape[0], hq.heads, hq.rows, total});
      const AttentionScoresParams s{.attention = p, .scores = scores.data, .total = to_int(total), .stage = stage_};
      CUVIL_CUDA(launch_attention_scores(s, ctx.stream()));
    }
    run_attention(ctx, p, ctx.output(0, out));
  }

 private:
  static HeadView heads_of(const Tensor& x, int64_t heads, const char* name) {
    if (x.shape.rank() == 4) return separate_view(x);
    require(heads > 0 && x.shape[2] % heads == 0, name, " has shape ", x.shape.to_string(), ", which ", heads,
            " heads do not divide");
    return {x.data, heads, x.shape[1], x.shape[2] / heads,
            interleaved_heads(x.shape[1], x.shape[2], x.shape[2] / heads)};
  }

  // Makes K and V those of the past and the present together, and writes the outputs that hold them.
  static void extend(OpContext& ctx, AttentionParams& p, HeadView& k, HeadView& v) {
    const bool past = ctx.has_input(kPastKey);
    const int64_t held = past ? ctx.input(kPastKey).shape[2] : 0;
    p.offset = to_int(held);
    CacheAppend append{.batch = p.batch, .past = held, .rows = k.rows, .capacity = held + k.rows, .dtype = p.dtype};
    for (auto& [view, input, output] : {std::tuple<HeadView&, int, int>{k, kPastKey, kPresentKey},
                                        std::tuple<HeadView&, int, int>{v, kPastValue, kPresentValue}}) {
      if (!past && !ctx.has_output(output)) continue;
      const Dims shape{p.batch, view.heads, append.capacity, view.size};
      Tensor before;
      if (past) {
        before = ctx.input(input);
        require(before.shape == (Dims{p.batch, view.heads, held, view.size}), "input ", input, " has the shape ",
                before.shape.to_string(), "; ", (Dims{p.batch, view.heads, held, view.size}).to_string(),
                " is required");
      }
      append.add(ctx, before, view, ctx.has_output(output) ? ctx.output(output, shape) : scratch(ctx, p.dtype, shape));
    }
    append.run(ctx);
  }

  static void set_lengths(AttentionParams& p, const Tensor& lengths) {
    require(lengths.size() == p.batch, "input ", kLengths, " has the shape ", lengths.shape.to_string(), "; [", p.batch,
            "] is required");
    p.lengths = lengths.data;
    p.lengths64 = true;
    p.offset_by_length = true;
  }

  // Opset 24 lets a mask end before the last key: the keys after it are not seen.
  static void cover(AttentionParams& p, const Tensor& mask) {
    const int rank = mask.shape.rank();
    if (rank > 0 && mask.shape[rank - 1] != 1 && mask.shape[rank - 1] < p.t) p.t = to_int(mask.shape[rank - 1]);
    set_mask(p, mask);
  }

  int64_t q_heads_, kv_heads_;
  float scale_ = 0;
  bool has_scale_;
  float softcap_;
  bool causal_;
  int left_, right_;
  ScoreStage stage_;
};

const Register attention{{.type = "Attention", .since = 23, .supports = supports, .create = make_op<OnnxAttention>}};

}  // namespace
}  // namespace cuvil
