// A convolution as a cuDNN operation graph, and the execution plans that cuDNN offers for it.
#pragma once

#include <deque>
#include <optional>
#include <string>

#include "ops/conv_problem.h"
#include "ops/cudnn_descriptor.h"

namespace cuvil {

// What the graph computes beyond the convolution, and in which order: cuDNN's precompiled fused kernels know the
// residual first, its run-time compiled ones take either.
enum class ConvFusion { kNone, kResidualThenBias, kBiasThenResidual };

// Whether cuDNN has the problem's activation as a pointwise mode, exact enough for its type.
bool cudnn_has_activation(const ConvProblem& problem);

class ConvPlan {
 public:
  // `plan` is finalized. Throws Error(kNotImplemented) when it wants more workspace than is granted.
  ConvPlan(CudnnDescriptor configuration, CudnnDescriptor plan);
  // A plan serialized earlier by the same version of cuDNN for the same device, kernels included; nothing when cuDNN
  // does not take it.
  static std::optional<ConvPlan> restore(cudnnHandle_t handle, const std::string& serialized);
  // "" when cuDNN cannot serialize it.
  std::string serialized() const;
  size_t workspace() const { return workspace_; }
  void execute(cudnnHandle_t handle, const ConvProblem& problem, ConvFusion fusion, const ConvOperands& operands,
               void* workspace, cudaStream_t stream) const;

 private:
  CudnnDescriptor configuration_, plan_;
  size_t workspace_;
};

class ConvGraph {
 public:
  // Throws Error when cuDNN refuses the graph.
  ConvGraph(cudnnHandle_t handle, const ConvProblem& problem, ConvFusion fusion);

  // The heuristics' engine configurations in their order, best expected first; empty when cuDNN has none.
  std::vector<CudnnDescriptor> configurations(cudnnBackendHeurMode_t mode) const;
  // Nothing when the configuration does not run here, is less exact or repeatable than promised, or wants more
  // workspace than the limit.
  std::optional<ConvPlan> plan(CudnnDescriptor configuration) const;

 private:
  bool acceptable(const CudnnDescriptor& configuration) const;
  // Descriptors that the graph refers to live as long as it: `parts_` owns them and its elements never move.
  const CudnnDescriptor& keep(CudnnDescriptor d);
  const CudnnDescriptor& tensor(int64_t uid, const std::vector<int64_t>& dims);
  const CudnnDescriptor& virtual_tensor(int64_t uid);
  CudnnDescriptor convolution() const;
  void add_convolution(const CudnnDescriptor& x, const CudnnDescriptor& w, const CudnnDescriptor& y);
  void add_gradient(const CudnnDescriptor& x, const CudnnDescriptor& w, const CudnnDescriptor& y);
  void add_pointwise(CudnnDescriptor mode, const CudnnDescriptor& x, const CudnnDescriptor* b,
                     const CudnnDescriptor& y);

  cudnnHandle_t handle_;
  const ConvProblem& problem_;
  std::deque<CudnnDescriptor> parts_;
  std::vector<cudnnBackendDescriptor_t> operations_;
  CudnnDescriptor graph_;
};

}  // namespace cuvil
