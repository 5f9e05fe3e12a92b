// Convolutions with bias, residual and activation. One engine a session serves Conv and cuvil::FusedConv.
#pragma once

#include <map>
#include <memory>

#include "core/tuning_cache.h"
#include "libs/measure.h"
#include "ops/conv_candidate.h"

namespace cuvil {

class ConvEngine : public SharedState {
 public:
  ConvEngine() = default;
  ~ConvEngine() override;

  // Computes Y, which holds at least one element. On the first run of a problem outside a capture, the candidates are
  // measured and the fastest is kept, in memory and in the per-user cache: later sessions find there the choice, and
  // cuDNN's plan with its compiled kernels. A run that is captured first takes the first that works. cuDNN is
  // initialized when a candidate of it is first wanted. Throws Error(kNotImplemented) when no candidate runs.
  void run(OpContext& ctx, ConvProblem problem, const ConvOperands& operands);

 private:
  const ConvCandidate& choose(OpContext& ctx, const ConvProblem& problem, const ConvOperands& operands);
  ConvCandidates candidates(OpContext& ctx, const ConvProblem& problem, const ConvOperands& operands,
                            const ConvFilter& filter);
  // Null when none of them runs.
  std::unique_ptr<ConvCandidate> fastest(OpContext& ctx, ConvCandidates found, const ConvOperands& operands);

  cudnnHandle_t handle_ = nullptr;
  const TuningMode tuning_ = TuningMode::from_environment();
  libs::Measurer measurer_;
  std::unique_ptr<TuningCache> cache_;
  std::map<ConvProblem, std::unique_ptr<ConvCandidate>> chosen_;
};

}  // namespace cuvil
