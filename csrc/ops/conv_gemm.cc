// Convolutions that are matrix products without an im2col, the tensors being the matrices: 1x1 ones, and those whose
// filter covers the image exactly (a fully connected layer).
#include <algorithm>

#include "ops/conv_candidate.h"

namespace cuvil {
namespace {

template <typename Fits>
bool every_dimension(const Window& w, Fits&& fits) {
  for (size_t i = 0; i < static_cast<size_t>(w.rank); ++i)
    if (w.pad_begin[i] != 0 || w.pad_end[i] != 0 || !fits(i)) return false;
  return true;
}

bool pointwise_window(const Window& w) {
  return every_dimension(w, [&](size_t i) { return w.kernel[i] == 1 && w.stride[i] == 1; });
}

bool whole_window(const Window& w) {
  return every_dimension(w, [&](size_t i) { return w.kernel[i] == w.in[i]; });
}

bool is_product(const ConvProblem& p) {
  return p.groups == 1 && p.c > 0 && !p.transposed && (pointwise_window(p.window) || whole_window(p.window));
}

class GemmConv : public ConvCandidate {
 public:
  GemmConv(OpContext& ctx, const ConvProblem& problem, const ConvOperands& operands)
      : ConvCandidate("gemm", problem),
        engine_(ctx.shared<GemmEngine>()),
        plan_(engine_.plan(ctx, product(problem), matrices(problem, operands), problem.alignment)) {}

  size_t workspace() const override { return GemmEngine::plan_workspace(plan_); }

  void launch(const ConvOperands& o, void* workspace, cudaStream_t stream) const override {
    engine_.launch(plan_, matrices(problem(), o), workspace, stream);
    // Channels-first: the bias runs along the product's rows, which its epilogue cannot add; what follows waits too.
    if (!bias_in_product(problem())) launch_conv_epilogue(problem(), o, true, false, true, stream);
  }

 private:
  // Y is [rows, K]; else [N, K, pixels].
  static bool rows_of_channels(const ConvProblem& p) { return p.channels_last || whole_window(p.window); }
  static bool bias_in_product(const ConvProblem& p) { return rows_of_channels(p) || !p.bias; }

  static GemmProblem product(const ConvProblem& p) {
    GemmProblem g;
    g.dtype = p.dtype;
    g.k = p.c * p.window.kernel_size();
    g.accumulate = p.z;
    g.tf32 = p.tf32;
    if (rows_of_channels(p)) {  // [N * pixels, C * window] times [K, C * window] transposed
      g.m = p.n * p.window.out_size();
      g.n = p.k;
      g.trans_b = true;
      g.bias = p.bias;
    } else {  // for each image, [K, C] times [C, pixels]
      g.m = p.k;
      g.n = p.window.out_size();
      g.batch = p.n;
      g.stride_b = p.c * g.n;
    }
    if (bias_in_product(p)) {
      g.activation = p.activation;
      g.activation_a = p.activation_a, g.activation_b = p.activation_b;
    }
    return g;
  }

  static GemmOperands matrices(const ConvProblem& p, const ConvOperands& o) {
    GemmOperands g;
    g.a = rows_of_channels(p) ? o.x : o.w;
    g.b = rows_of_channels(p) ? o.w : o.x;
    g.bias = o.bias;
    g.c = o.z;
    g.d = o.y;
    return g;
  }

  GemmEngine& engine_;
  const GemmPlan& plan_;
};

}  // namespace

void add_gemm_candidate(OpContext& ctx, const ConvProblem& problem, const ConvOperands& operands,
                        const ConvFilter& filter, ConvCandidates& out) {
  if (!is_product(problem) || !filter.wants("gemm") || filter.full(out)) return;
  try {
    out.push_back(std::make_unique<GemmConv>(ctx, problem, operands));
  } catch (const Error& e) {
    // Without cuBLASLt, or an algorithm of it, cuDNN's candidates remain.
    if (e.kind() != ErrorKind::kMissingLibrary && e.kind() != ErrorKind::kNotImplemented) throw;
  }
}

}  // namespace cuvil
