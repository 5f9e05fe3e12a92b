// com.microsoft EmbedLayerNormalization: the first layer of BERT.
#include "kernels/embed_layer_norm.cuh"

#include "ops/index_guard.h"
#include "ops/op.h"

namespace cuvil {
namespace {

enum Input { kIds, kSegments, kWord, kPosition, kSegment, kGamma, kBeta, kMask, kPositions };
enum Output { kY, kMaskIndex, kSum };

std::string supports(const NodeView& node) {
  const DType t = node.input_dtype(kWord);
  if (t != DType::kF32 && t != DType::kF16) return concat("input 2 is ", name_of(t), "; f32 or f16 is required");
  for (int i : {kPosition, kSegment, kGamma, kBeta})
    if (node.has_input(i) && node.input_dtype(i) != t)
      return concat("input ", i, " is ", name_of(node.input_dtype(i)), ", input 2 ", name_of(t));
  for (int i : {kIds, kSegments, kMask, kPositions})
    if (node.has_input(i) && node.input_dtype(i) != DType::kI32)
      return concat("input ", i, " is ", name_of(node.input_dtype(i)), "; i32 is required");
  if (node.has_input(kSegments) != node.has_input(kSegment)) return "segments and their embedding come together";
  return "";
}

class EmbedLayerNorm : public Op {
 public:
  explicit EmbedLayerNorm(const NodeView& node) : epsilon_(node.get<float>("epsilon", 1e-12f)) {}

  void compute(OpContext& ctx) override {
    const Tensor ids = ctx.input(kIds), word = ctx.input(kWord);
    require(ids.shape.rank() == 2, "the ids have shape ", ids.shape.to_string(), "; [batch, sequence] is required");
    require(word.shape.rank() == 2, "the words' embedding has shape ", word.shape.to_string(),
            "; [words, hidden] is required");
    EmbedLayerNormParams p;
    p.dtype = word.dtype, p.epsilon = epsilon_;
    p.batch = ids.shape[0], p.seq = ids.shape[1], p.hidden = word.shape[1];
    p.ids = ids.as<int32_t>();
    p.word = word.data, p.words = word.shape[0];
    p.position = table(ctx, kPosition, p.hidden, &p.all_positions);
    if (ctx.has_input(kSegment)) {
      p.segment = table(ctx, kSegment, p.hidden, &p.all_segments);
      p.segments = tokens(ctx, kSegments, ids.shape);
    }
    if (ctx.has_input(kPositions)) {
      const Tensor positions = ctx.input(kPositions);
      const Dims one{1, p.seq};
      require(positions.shape == ids.shape || positions.shape == one, "the positions have shape ",
              positions.shape.to_string(), "; ", ids.shape.to_string(), " or ", one.to_string(), " is required");
      p.positions = positions.as<int32_t>(), p.position_rows = positions.shape[0];
    }
    p.gamma = vector(ctx, kGamma, p.hidden);
    p.beta = vector(ctx, kBeta, p.hidden);
    const Dims shape{p.batch, p.seq, p.hidden};
    p.y = ctx.output(kY, shape).data;
    if (ctx.has_output(kSum)) p.sum = ctx.output(kSum, shape).data;
    p.out_of_range = guard_.arm("an index of an embedding", "took zeros for it");
    CUVIL_CUDA(launch_embed_layer_norm(p, ctx.stream()));
    if (ctx.has_output(kMaskIndex)) count_mask(ctx, ids.shape);
  }

 private:
  static const void* table(OpContext& ctx, int i, int64_t hidden, int64_t* rows) {
    const Tensor t = ctx.input(i);
    require(t.shape.rank() == 2 && t.shape[1] == hidden, "input ", i, " has shape ", t.shape.to_string(), "; [rows, ",
            hidden, "] is required");
    *rows = t.shape[0];
    return t.data;
  }
  static const void* vector(OpContext& ctx, int i, int64_t hidden) {
    const Tensor t = ctx.input(i);
    require(t.shape == Dims{hidden}, "input ", i, " has shape ", t.shape.to_string(), "; [", hidden, "] is required");
    return t.data;
  }
  static const int32_t* tokens(OpContext& ctx, int i, const Dims& shape) {
    const Tensor t = ctx.input(i);
    require(t.shape == shape, "input ", i, " has shape ", t.shape.to_string(), "; ", shape.to_string(), " is required");
    return t.as<int32_t>();
  }
  // Without a mask the numbers are 0, as ONNX Runtime gives them.
  static void count_mask(OpContext& ctx, const Dims& shape) {
    const Tensor index = ctx.output(kMaskIndex, {shape[0]});
    if (ctx.has_input(kMask)) {
      const int32_t* mask = tokens(ctx, kMask, shape);
      CUVIL_CUDA(launch_mask_count(mask, index.as<int32_t>(), shape[0], shape[1], ctx.stream()));
    } else if (index.bytes() > 0) {
      CUVIL_CUDA(cudaMemsetAsync(index.data, 0, index.bytes(), ctx.stream()));
    }
  }

  float epsilon_;
  IndexGuard guard_;
};

const Register embed_layer_norm{{.domain = "com.microsoft",
                                 .type = "EmbedLayerNormalization",
                                 .supports = supports,
                                 .create = make_op<EmbedLayerNorm>}};

}  // namespace
}  // namespace cuvil
