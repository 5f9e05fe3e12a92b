// Products of packed 8-bit integer matrices: cuBLASLt's tensor-core kernels where it has one, else our own kernel.
#pragma once

#include <map>
#include <memory>

#include "kernels/int_gemm.cuh"
#include "libs/cublaslt.h"
#include "ops/op.h"

namespace cuvil {

// Columns of a packed right operand are padded to a multiple of this: cuBLASLt's integer kernels want it of the rows
// of what they write.
constexpr int64_t kColumnAlign = 4;
inline int64_t padded_columns(int64_t n) { return (n + kColumnAlign - 1) / kColumnAlign * kColumnAlign; }

class IntGemmPlan;

class IntGemmEngine : public SharedState {
 public:
  IntGemmEngine();
  ~IntGemmEngine() override;

  // p.n is a multiple of kColumnAlign.
  void run(OpContext& ctx, const IntGemmParams& p);

 private:
  const libs::CublasLt* lt_ = nullptr;  // null: the library is missing
  cublasLtHandle_t handle_ = nullptr;
  // By the problem, its pointers null.
  std::map<IntGemmParams, std::unique_ptr<IntGemmPlan>> plans_;
};

}  // namespace cuvil
