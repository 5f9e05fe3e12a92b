// A way to compute one ConvProblem; the engine measures them against each other and keeps the fastest.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "libs/cudnn.h"
#include "ops/conv_problem.h"
#include "ops/gemm_engine.h"

namespace cuvil {

class ConvCandidate {
 public:
  ConvCandidate(std::string id, const ConvProblem& problem) : id_(std::move(id)), problem_(problem) {}
  virtual ~ConvCandidate() = default;

  // Names the choice in the tuning cache: the same id means the same computation for one library version and device.
  const std::string& id() const { return id_; }
  const ConvProblem& problem() const { return problem_; }
  virtual size_t workspace() const = 0;
  // What makes it again without compiling, for the cache; "" where there is nothing to save.
  virtual std::string serialized() const { return ""; }
  // Enqueues Y. `workspace` is 256-byte aligned. Deterministic, and legal while a graph is captured.
  virtual void launch(const ConvOperands& operands, void* workspace, cudaStream_t stream) const = 0;

 private:
  const std::string id_;
  const ConvProblem problem_;
};

using ConvCandidates = std::vector<std::unique_ptr<ConvCandidate>>;

// Which candidates are wanted: building one may compile a kernel, so those that cannot be chosen are not built.
struct ConvFilter {
  std::string id;           // only this one, when not empty
  std::string prefix;       // only those whose id begins so
  int limit = 0;            // stop after as many, when not 0
  std::string stored = "";  // what the candidate `id` was serialized to, when known
  bool all_plans = false;   // all that cuDNN ranks, not only the first few
  // Whether it may want a candidate whose id begins so.
  bool reaches(const std::string& start) const {
    const size_t shared = std::min(start.size(), prefix.size());
    return (id.empty() || id.compare(0, start.size(), start) == 0) && prefix.compare(0, shared, start, 0, shared) == 0;
  }
  bool wants(const std::string& candidate) const {
    return (id.empty() || id == candidate) && candidate.compare(0, prefix.size(), prefix) == 0;
  }
  bool full(const ConvCandidates& found) const { return limit != 0 && static_cast<int>(found.size()) >= limit; }
};

// Each appends what it has for the problem; nothing when it does not apply.
// cuDNN's own. In 16 bits, a plain convolution followed by our epilogue is offered only where cuDNN fuses nothing, or
// when the filter asks for it.
void add_cudnn_candidates(cudnnHandle_t handle, const ConvProblem& problem, const ConvFilter& filter,
                          ConvCandidates& out);
void add_gemm_candidate(OpContext& ctx, const ConvProblem& problem, const ConvOperands& operands,
                        const ConvFilter& filter, ConvCandidates& out);
void add_depthwise_candidate(const ConvProblem& problem, const ConvFilter& filter, ConvCandidates& out);

// Bias, residual and activation of the problem as one pass over Y, as far as the flags leave them to do.
void launch_conv_epilogue(const ConvProblem& problem, const ConvOperands& operands, bool bias, bool z, bool activation,
                          cudaStream_t stream);

}  // namespace cuvil
