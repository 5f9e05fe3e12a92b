// One matrix product prepared for cuBLASLt: descriptors, the chosen algorithm, what remains for our epilogue kernel.
// Or, where that was faster, for our own kernel of products of few rows.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kernels/small_product.cuh"
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
  // The ways in which our own kernel can do it on such a device; none where it cannot, or the card is full anyway.
  std::vector<ProductCut> cuts(const DeviceInfo& device) const;
  void adopt(ProductCut cut);

  const GemmProblem& problem() const { return problem_; }
  bool fused() const { return fused_; }
  size_t workspace() const { return cut_ ? 0 : workspace_; }
  const cublasLtMatmulAlgo_t& algo() const { return algo_; }
  void launch(cublasLtHandle_t handle, const GemmOperands& operands, void* workspace, cudaStream_t stream) const;

 private:
  void launch_small(const GemmOperands& operands, cudaStream_t stream) const;
  cublasLtMatrixLayout_t layout(int64_t rows, int64_t cols, int64_t stride) const;

  const libs::CublasLt& lt_;
  const GemmProblem problem_;
  const bool fused_;
  bool bias_fused_ = false, activation_fused_ = false;
  cublasLtMatmulDesc_t desc_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, d_ = nullptr;
  cublasLtMatmulAlgo_t algo_{};
  size_t workspace_ = 0;
  std::optional<ProductCut> cut_;
};

}  // namespace cuvil
