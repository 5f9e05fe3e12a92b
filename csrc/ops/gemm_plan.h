// One matrix product prepared for cuBLASLt: descriptors, the chosen algorithm, what remains for our epilogue kernel.
#pragma once

#include <string>
#include <vector>

#include "libs/cublaslt.h"
#include "ops/gemm_engine.h"

namespace cuvil {

class GemmPlan {
 public:
  // `fuse` puts bias and activation into cuBLASLt's epilogue where it has one of that name.
  GemmPlan(const libs::CublasLt& lt, const GemmProblem& problem, bool fuse);
  ~GemmPlan();
  GemmPlan(const GemmPlan&) = delete;
  GemmPlan& operator=(const GemmPlan&) = delete;

  // cuBLASLt's suggestions, best first; empty when it has none for this combination.
  std::vector<cublasLtMatmulHeuristicResult_t> suggestions(cublasLtHandle_t handle, size_t max_workspace,
                                                           int count) const;
  // False when the algorithm (of another run's cache) does not fit this problem after all.
  bool adopt(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algo, size_t max_workspace);
  void adopt(const cublasLtMatmulHeuristicResult_t& choice);

  const GemmProblem& problem() const { return problem_; }
  bool fused() const { return fused_; }
  size_t workspace() const { return workspace_; }
  const cublasLtMatmulAlgo_t& algo() const { return algo_; }
  void launch(cublasLtHandle_t handle, const GemmOperands& operands, void* workspace, cudaStream_t stream) const;

 private:
  cublasLtMatrixLayout_t layout(int64_t rows, int64_t cols, int64_t stride) const;

  const libs::CublasLt& lt_;
  const GemmProblem problem_;
  const bool fused_;
  bool bias_fused_ = false, activation_fused_ = false;
  cublasLtMatmulDesc_t desc_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, d_ = nullptr;
  cublasLtMatmulAlgo_t algo_{};
  size_t workspace_ = 0;
};

}  // namespace cuvil
