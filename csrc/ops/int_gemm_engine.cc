#include "ops/int_gemm_engine.h"

namespace cuvil {
namespace {

// None: a grouped convolution runs a product an image, and each would hold its own until the node ends.
constexpr size_t kMaxWorkspace = 0;

}  // namespace

// One product prepared for cuBLASLt.
class IntGemmPlan {
 public:
  IntGemmPlan(const libs::CublasLt& lt, cublasLtHandle_t handle, const IntGemmParams& p) : lt_(lt) {
    CUVIL_CUBLASLT(lt_.desc_create(&desc_, CUBLAS_COMPUTE_32I, CUDA_R_32I));
    // cuBLASLt is column-major. Packed rows are its columns, so both operands are stored along the sum: the left one
    // transposed, the form its integer kernels require. D is written as D^T = B A^T.
    const cublasOperation_t first = CUBLAS_OP_T, second = CUBLAS_OP_N;
    CUVIL_CUBLASLT(lt_.desc_set(desc_, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first));
    CUVIL_CUBLASLT(lt_.desc_set(desc_, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second));
    b_ = layout(CUDA_R_8I, p.kp, p.n, p.batch, p.stride_b);
    a_ = layout(CUDA_R_8I, p.kp, p.m, p.batch, p.stride_a);
    d_ = layout(CUDA_R_32I, p.n, p.m, p.batch, p.m * p.n);
    choose(handle);
  }
  ~IntGemmPlan() {
    for (cublasLtMatrixLayout_t l : {a_, b_, d_})
      if (l) lt_.layout_destroy(l);
    if (desc_) lt_.desc_destroy(desc_);
  }
  IntGemmPlan(const IntGemmPlan&) = delete;
  IntGemmPlan& operator=(const IntGemmPlan&) = delete;

  bool found() const { return found_; }

  void launch(OpContext& ctx, cublasLtHandle_t handle, const IntGemmParams& p) const {
    void* workspace = choice_.workspaceSize ? ctx.scratch(choice_.workspaceSize) : nullptr;
    const int32_t one = 1, none = 0;
    CUVIL_CUBLASLT(lt_.matmul(handle, desc_, &one, p.b, b_, p.a, a_, &none, p.d, d_, p.d, d_, &choice_.algo, workspace,
                              choice_.workspaceSize, ctx.stream()));
  }

 private:
  cublasLtMatrixLayout_t layout(cudaDataType_t type, int64_t rows, int64_t columns, int64_t batch, int64_t stride) {
    cublasLtMatrixLayout_t l = nullptr;
    CUVIL_CUBLASLT(lt_.layout_create(&l, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), rows));
    if (batch > 1) {
      const int32_t count = static_cast<int32_t>(batch);
      CUVIL_CUBLASLT(lt_.layout_set(l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count));
      CUVIL_CUBLASLT(lt_.layout_set(l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride));
    }
    return l;
  }

  void choose(cublasLtHandle_t handle) {
    cublasLtMatmulPreference_t raw = nullptr;
    CUVIL_CUBLASLT(lt_.preference_create(&raw));
    const std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, decltype(lt_.preference_destroy)> preference(
        raw, lt_.preference_destroy);
    const uint64_t bytes = kMaxWorkspace;
    CUVIL_CUBLASLT(lt_.preference_set(raw, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes));
    const uint32_t alignment = kPackedAlign;
    for (const auto which : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                             CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      CUVIL_CUBLASLT(lt_.preference_set(raw, which, &alignment, sizeof alignment));
    int count = 0;
    const cublasStatus_t status = lt_.heuristic(handle, desc_, b_, a_, d_, d_, raw, 1, &choice_, &count);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) return;
    CUVIL_CUBLASLT(status);
    found_ = count > 0 && choice_.state == CUBLAS_STATUS_SUCCESS;
  }

  const libs::CublasLt& lt_;
  cublasLtMatmulDesc_t desc_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, d_ = nullptr;
  cublasLtMatmulHeuristicResult_t choice_{};
  bool found_ = false;
};

IntGemmEngine::IntGemmEngine() {
  try {
    lt_ = &libs::cublaslt();
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::kMissingLibrary) throw;
    return;
  }
  CUVIL_CUBLASLT(lt_->create(&handle_));
}

IntGemmEngine::~IntGemmEngine() {
  plans_.clear();
  if (handle_) lt_->destroy(handle_);
}

void IntGemmEngine::run(OpContext& ctx, const IntGemmParams& p) {
  if (p.m == 0 || p.n == 0 || p.batch == 0) return;
  if (p.kp == 0) {
    CUVIL_CUDA(cudaMemsetAsync(p.d, 0, static_cast<size_t>(p.batch * p.m * p.n) * sizeof(int32_t), ctx.stream()));
    return;
  }
  // A single row or column is bound by memory, and the library's tiles would be nearly empty.
  const bool worth_it = lt_ && p.m > 1 && p.n > kColumnAlign && p.batch <= INT32_MAX;
  if (worth_it) {
    IntGemmParams problem = p;
    problem.a = problem.b = nullptr, problem.d = nullptr;
    std::unique_ptr<IntGemmPlan>& plan = plans_[problem];
    if (!plan) plan = std::make_unique<IntGemmPlan>(*lt_, handle_, problem);
    if (plan->found()) return plan->launch(ctx, handle_, p);
  }
  CUVIL_CUDA(launch_int_gemm(p, ctx.stream()));
}

}  // namespace cuvil
