// Convolution candidates from cuDNN: fused graphs, and plain convolutions followed by our epilogue kernel; each also
// on an explicitly padded input where cuDNN lacks asymmetric padding.
#include <algorithm>

#include "kernels/conv_layout.cuh"
#include "kernels/epilogue.cuh"
#include "ops/conv_candidate.h"
#include "ops/conv_graph.h"

namespace cuvil {
namespace {

// Heuristic results tried for each graph. Its first few hold the best nearly always, and plans that cuDNN compiles at
// run time cost some 100 ms each.
constexpr int kFusedPlans = 6;
constexpr int kPlainPlans = 3;

size_t round_up(size_t bytes) { return (bytes + 255) / 256 * 256; }

ConvProblem padded_problem(const ConvProblem& p) {
  ConvProblem q = p;
  for (size_t i = 0; i < static_cast<size_t>(p.window.rank); ++i) {
    q.window.in[i] += p.window.pad_begin[i] + p.window.pad_end[i];
    q.window.pad_begin[i] = q.window.pad_end[i] = 0;
  }
  return q;
}

class CudnnConv : public ConvCandidate {
 public:
  // `explicit_padding`: the plan is one of padded_problem(problem).
  CudnnConv(std::string id, const ConvProblem& problem, bool explicit_padding, cudnnHandle_t handle, ConvFusion fusion,
            ConvPlan plan)
      : ConvCandidate(std::move(id), problem),
        explicit_padding_(explicit_padding),
        planned_(explicit_padding ? padded_problem(problem) : problem),
        handle_(handle),
        fusion_(fusion),
        plan_(std::move(plan)) {}

  size_t workspace() const override { return round_up(plan_.workspace()) + padded_bytes(); }

  void launch(const ConvOperands& operands, void* workspace, cudaStream_t stream) const override {
    ConvOperands o = operands;
    if (explicit_padding_) {
      void* padded = static_cast<char*>(workspace) + round_up(plan_.workspace());
      pad(operands.x, padded, stream);
      o.x = padded;
    }
    plan_.execute(handle_, planned_, fusion_, o, workspace, stream);
    if (fusion_ == ConvFusion::kNone) launch_conv_epilogue(problem(), o, true, true, true, stream);
  }

 private:
  size_t padded_bytes() const {
    return explicit_padding_ ? static_cast<size_t>(planned_.x_count()) * size_of(planned_.dtype) : 0;
  }

  void pad(const void* x, void* padded, cudaStream_t stream) const {
    const ConvProblem& p = problem();
    SpatialPadParams s;
    s.in = x;
    s.out = padded;
    s.element = size_of(p.dtype);
    s.outer = p.channels_last ? p.n : p.n * p.c;
    s.vector = p.channels_last ? p.c : 1;
    for (size_t i = 0; i < static_cast<size_t>(p.window.rank); ++i) {
      s.in_dims[i] = p.window.in[i];
      s.begin[i] = p.window.pad_begin[i];
      s.out_dims[i] = planned_.window.in[i];
    }
    CUVIL_CUDA(launch_spatial_pad(s, stream));
  }

  bool explicit_padding_;
  ConvProblem planned_;
  cudnnHandle_t handle_;
  ConvFusion fusion_;
  ConvPlan plan_;
};

// Up to `most` plans of one graph.
int add_graph(cudnnHandle_t handle, const ConvProblem& p, bool explicit_padding, ConvFusion fusion,
              const std::string& name, int most, const ConvFilter& filter, ConvCandidates& out) {
  int added = 0;
  try {
    const ConvProblem planned = explicit_padding ? padded_problem(p) : p;
    const ConvGraph graph(handle, planned, fusion);
    // The fallback list is the slow but general one: asked only when the ranked one yields nothing.
    for (const auto& [mode, mode_name] :
         {std::pair{CUDNN_HEUR_MODE_A, "a"}, std::pair{CUDNN_HEUR_MODE_FALLBACK, "f"}}) {
      std::vector<CudnnDescriptor> configurations = graph.configurations(mode);
      for (size_t i = 0; i < configurations.size() && added < most && !filter.full(out); ++i) {
        std::string id = concat("cudnn:", name, explicit_padding ? ":pad:" : ":", mode_name, i);
        if (!filter.wants(id)) continue;
        std::optional<ConvPlan> plan = graph.plan(std::move(configurations[i]));
        if (!plan) continue;
        out.push_back(
            std::make_unique<CudnnConv>(std::move(id), p, explicit_padding, handle, fusion, std::move(*plan)));
        ++added;
      }
      if (added) break;
    }
  } catch (const Error& e) {
    // A graph that cuDNN refuses as a whole offers nothing; running out of memory is not an answer about the graph.
    if (e.kind() == ErrorKind::kOutOfMemory) throw;
  }
  return added;
}

void add_graphs(cudnnHandle_t handle, const ConvProblem& p, bool explicit_padding, const ConvFilter& filter,
                ConvCandidates& out) {
  const auto add = [&](ConvFusion fusion, const char* name, int most) {
    return add_graph(handle, p, explicit_padding, fusion, name, most, filter, out);
  };
  const bool epilogue = p.bias || p.z || p.activation != Activation::kNone;
  if (epilogue && cudnn_has_activation(p)) {
    const int fused = add(ConvFusion::kResidualThenBias, "rb", kFusedPlans);
    if (fused == 0 && p.bias && p.z) add(ConvFusion::kBiasThenResidual, "br", kFusedPlans);
  }
  add(ConvFusion::kNone, "plain", kPlainPlans);
}

}  // namespace

void launch_conv_epilogue(const ConvProblem& p, const ConvOperands& o, bool bias, bool z, bool activation,
                          cudaStream_t stream) {
  EpilogueParams e;
  e.y = o.y;
  e.bias = bias && p.bias ? o.bias : nullptr;
  e.z = z && p.z ? o.z : nullptr;
  e.dtype = p.dtype;
  e.count = p.y_count();
  e.channels = p.k;
  e.inner = p.channels_last ? 1 : p.window.out_size();
  if (activation) e.activation = p.activation_params();
  if (e.bias || e.z || e.activation.kind != Activation::kNone) CUVIL_CUDA(launch_epilogue(e, stream));
}

void add_cudnn_candidates(cudnnHandle_t handle, const ConvProblem& problem, const ConvFilter& filter,
                          ConvCandidates& out) {
  add_graphs(handle, problem, false, filter, out);
  if (!problem.window.symmetric() && !filter.full(out)) add_graphs(handle, problem, true, filter, out);
}

}  // namespace cuvil
