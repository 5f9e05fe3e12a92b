// Matrix products, by cuBLASLt or a kernel of our own: D = act(alpha * op(A) op(B) + bias + beta * C), all row-major.
//
// The algorithm of each problem is chosen by measuring cuBLASLt's best suggestions and, for products of few rows, our
// kernel's ways to cut them up on the first run outside a capture, and kept in memory and in the per-user cache. Shared
// by MatMul, Gemm, FusedMatMul and 1x1 convolutions.
#pragma once

#include <compare>
#include <map>
#include <memory>
#include <span>

#include "core/tuning_cache.h"
#include "device/activation.h"
#include "libs/cublaslt.h"
#include "libs/measure.h"
#include "ops/op.h"

namespace cuvil {

struct GemmProblem {
  DType dtype = DType::kF32;  // of A, B, C, D and bias: f32, f16, bf16 or f64
  int64_t m = 0, n = 0, k = 0;
  bool trans_a = false;  // A is stored [k, m] instead of [m, k]
  bool trans_b = false;  // B is stored [n, k] instead of [k, n]
  // Batches: elements between neighbouring matrices; 0 shares one matrix. C and D are [batch, m, n], contiguous.
  int64_t batch = 1, stride_a = 0, stride_b = 0;
  bool bias = false;        // [n], added to every row
  bool accumulate = false;  // C is read
  Activation activation = Activation::kNone;
  float activation_a = 0, activation_b = 0;
  bool tf32 = false;  // f32 may run in TF32
  // Alignment in bytes that the pointers have, a power of two up to 256. Filled in by GemmEngine::run.
  int align_a = 0, align_b = 0, align_c = 0, align_d = 0;

  auto operator<=>(const GemmProblem&) const = default;
  std::string key() const;
  std::string describe() const;
};

struct GemmOperands {
  const void* a = nullptr;
  const void* b = nullptr;
  const void* bias = nullptr;
  const void* c = nullptr;  // may be d itself
  void* d = nullptr;
  double alpha = 1, beta = 1;  // beta counts only when the problem accumulates
  bool b_constant = false;     // B is an initializer as ONNX Runtime laid it out, written by no kernel
};

class GemmPlan;

class GemmEngine : public SharedState {
 public:
  GemmEngine();
  ~GemmEngine() override;

  // m, n, batch above zero; k == 0 gives act(bias + beta * C).
  void run(OpContext& ctx, const GemmProblem& problem, const GemmOperands& operands) {
    run(ctx, problem, std::span(&operands, 1));
  }
  // The same product of several operands, one after the other in one workspace.
  void run(OpContext& ctx, const GemmProblem& problem, std::span<const GemmOperands> all);

  // For callers that compare a product with something else: the plan, made on demand, and its launch on any stream
  // with a workspace of plan_workspace bytes. The plan serves pointers of `max_alignment`, even where these operands
  // happen to be aligned better.
  const GemmPlan& plan(OpContext& ctx, GemmProblem problem, const GemmOperands& operands, int max_alignment = 256);
  static size_t plan_workspace(const GemmPlan& plan);
  void launch(const GemmPlan& plan, const GemmOperands& operands, void* workspace, cudaStream_t stream) const;

 private:
  static void run_empty_sum(OpContext& ctx, const GemmProblem& problem, const GemmOperands& operands);
  std::unique_ptr<GemmPlan> make_plan(OpContext& ctx, const GemmProblem& problem, const GemmOperands& operands);
  bool choose_algorithm(OpContext& ctx, GemmPlan& plan, const GemmOperands& operands);
  bool adopt_without_measuring(OpContext& ctx, GemmPlan& plan, const std::string& key, size_t max_workspace);

  const libs::CublasLt& lt_;
  cublasLtHandle_t handle_ = nullptr;
  const TuningMode tuning_ = TuningMode::from_environment();
  libs::Measurer measurer_;
  std::unique_ptr<TuningCache> cache_;
  std::map<GemmProblem, std::unique_ptr<GemmPlan>> plans_;
};

// f32, f16, bf16 and f64 are served; "" or the reason.
std::string gemm_dtype_reason(DType dtype, const char* what);

}  // namespace cuvil
