#include "ops/gemm_plan.h"

#include <algorithm>

#include "kernels/epilogue.cuh"

namespace cuvil {
namespace {

cudaDataType_t cuda_type(DType t) {
  switch (t) {
    case DType::kF16:
      return CUDA_R_16F;
    case DType::kBF16:
      return CUDA_R_16BF;
    case DType::kF64:
      return CUDA_R_64F;
    default:
      return CUDA_R_32F;
  }
}

bool is_16_bit(DType t) { return t == DType::kF16 || t == DType::kBF16; }

// GELU of the library is the tanh formula, with a tanh that is good for 16 bits only.
bool library_activation(const GemmProblem& p) {
  return p.activation == Activation::kNone || p.activation == Activation::kRelu ||
         (p.activation == Activation::kGeluTanh && is_16_bit(p.dtype));
}

cublasLtEpilogue_t epilogue_of(bool bias, Activation activation) {
  switch (activation) {
    case Activation::kRelu:
      return bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
    case Activation::kGeluTanh:
      return bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    default:
      return bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
  }
}

}  // namespace

GemmPlan::GemmPlan(const libs::CublasLt& lt, const GemmProblem& problem, bool fuse)
    : lt_(lt), problem_(problem), fused_(fuse) {
  const GemmProblem& p = problem_;
  bias_fused_ = fuse && p.bias;
  // An activation follows the bias, so it cannot be fused when the bias is not.
  activation_fused_ = fuse && library_activation(p);

  const bool f64 = p.dtype == DType::kF64;
  const cublasComputeType_t compute = f64                                ? CUBLAS_COMPUTE_64F
                                      : p.dtype == DType::kF32 && p.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                                         : CUBLAS_COMPUTE_32F;
  CUVIL_CUBLASLT(lt_.desc_create(&desc_, compute, f64 ? CUDA_R_64F : CUDA_R_32F));
  const auto set = [&](cublasLtMatmulDescAttributes_t attr, const auto& value) {
    CUVIL_CUBLASLT(lt_.desc_set(desc_, attr, &value, sizeof value));
  };
  // cuBLASLt is column-major: D^T = op(B)^T op(A)^T, where each row-major matrix already is its own transpose. The
  // first operand is therefore our B, and a stored transpose becomes a transposed operand.
  const cublasOperation_t first = p.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t second = p.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
  set(CUBLASLT_MATMUL_DESC_TRANSA, first);
  set(CUBLASLT_MATMUL_DESC_TRANSB, second);
  const cublasLtEpilogue_t epilogue = epilogue_of(bias_fused_, activation_fused_ ? p.activation : Activation::kNone);
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
  if (bias_fused_) {
    // The rows of the column-major D are our n columns: the bias runs along them, as wanted.
    const int32_t bias_type = cuda_type(p.dtype);
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, bias_type);
  }
  b_ = p.trans_b ? layout(p.k, p.n, p.stride_b) : layout(p.n, p.k, p.stride_b);
  a_ = p.trans_a ? layout(p.m, p.k, p.stride_a) : layout(p.k, p.m, p.stride_a);
  d_ = layout(p.n, p.m, p.m * p.n);
}

GemmPlan::~GemmPlan() {
  for (cublasLtMatrixLayout_t l : {a_, b_, d_})
    if (l) lt_.layout_destroy(l);
  if (desc_) lt_.desc_destroy(desc_);
}

cublasLtMatrixLayout_t GemmPlan::layout(int64_t rows, int64_t cols, int64_t stride) const {
  cublasLtMatrixLayout_t l = nullptr;
  CUVIL_CUBLASLT(
      lt_.layout_create(&l, cuda_type(problem_.dtype), static_cast<uint64_t>(rows), static_cast<uint64_t>(cols), rows));
  if (problem_.batch > 1) {
    const int32_t batch = static_cast<int32_t>(problem_.batch);
    CUVIL_CUBLASLT(lt_.layout_set(l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch));
    CUVIL_CUBLASLT(lt_.layout_set(l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride));
  }
  return l;
}

std::vector<cublasLtMatmulHeuristicResult_t> GemmPlan::suggestions(cublasLtHandle_t handle, size_t max_workspace,
                                                                   int count) const {
  cublasLtMatmulPreference_t raw = nullptr;
  CUVIL_CUBLASLT(lt_.preference_create(&raw));
  const std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, decltype(lt_.preference_destroy)> preference(
      raw, lt_.preference_destroy);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attr, const auto& value) {
    CUVIL_CUBLASLT(lt_.preference_set(raw, attr, &value, sizeof value));
  };
  const uint64_t bytes = max_workspace;
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, bytes);
  // Split-K partial sums stay in fp32: reductions in the output type would round them to 16 bits.
  const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes);
  const uint32_t align_first = static_cast<uint32_t>(problem_.align_b);
  const uint32_t align_second = static_cast<uint32_t>(problem_.align_a);
  const uint32_t align_c = static_cast<uint32_t>(problem_.align_c), align_d = static_cast<uint32_t>(problem_.align_d);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, align_first);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, align_second);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, align_c);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, align_d);

  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(count));
  int found = 0;
  const cublasStatus_t status = lt_.heuristic(handle, desc_, b_, a_, d_, d_, raw, count, results.data(), &found);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) return {};
  CUVIL_CUBLASLT(status);
  results.resize(static_cast<size_t>(found));
  std::erase_if(results, [](const auto& r) { return r.state != CUBLAS_STATUS_SUCCESS; });
  return results;
}

bool GemmPlan::adopt(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algo, size_t max_workspace) {
  cublasLtMatmulHeuristicResult_t checked{};
  if (lt_.algo_check(handle, desc_, b_, a_, d_, d_, &algo, &checked) != CUBLAS_STATUS_SUCCESS) return false;
  if (checked.workspaceSize > max_workspace) return false;
  algo_ = algo;  // the check reports sizes only
  workspace_ = checked.workspaceSize;
  cut_.reset();
  return true;
}

void GemmPlan::adopt(const cublasLtMatmulHeuristicResult_t& choice) {
  algo_ = choice.algo;
  workspace_ = choice.workspaceSize;
  cut_.reset();
}

std::vector<ProductCut> GemmPlan::cuts(const DeviceInfo& device) const {
  const GemmProblem& p = problem_;
  const bool vectors = p.n % 8 == 0 && p.k % 8 == 0 && std::min({p.align_a, p.align_b, p.align_c, p.align_d}) >= 16;
  if (!fused_ || !is_16_bit(p.dtype) || p.trans_a || p.batch != 1 || !vectors || device.sm < 80) return {};
  std::vector<ProductCut> found;
  for (const int rows : {32, 64}) {
    if (rows > 32 && p.m <= rows / 2) break;  // half of each tile would be padding
    const int64_t tiles = (p.m + rows - 1) / rows * ((p.n + 63) / 64), steps = (p.k + 63) / 64;
    // Where smaller tiles already fill the card several times over, a library's larger ones are better.
    if (tiles > 3 * device.sm_count) continue;
    for (const int split : {1, 2, 4, 8})
      if (split == 1 || (device.sm >= 90 && split <= steps && tiles * split <= 3 * device.sm_count))
        found.push_back({rows, split});
  }
  return found;
}

void GemmPlan::adopt(ProductCut cut) { cut_ = cut; }

void GemmPlan::launch_small(const GemmOperands& o, cudaStream_t stream) const {
  const GemmProblem& p = problem_;
  SmallProductParams s;
  s.a = o.a, s.b = o.b, s.d = o.d;
  s.bias = p.bias ? o.bias : nullptr;
  s.c = p.accumulate ? o.c : nullptr;
  s.dtype = p.dtype;
  s.m = p.m, s.n = p.n, s.k = p.k;
  s.trans_b = p.trans_b;
  s.alpha = static_cast<float>(o.alpha), s.beta = static_cast<float>(o.beta);
  s.activation = {p.activation, p.activation_a, p.activation_b};
  s.b_constant = o.b_constant;
  CUVIL_CUDA(launch_small_product(s, *cut_, stream));
}

void GemmPlan::launch(cublasLtHandle_t handle, const GemmOperands& o, void* workspace, cudaStream_t stream) const {
  if (cut_) return launch_small(o, stream);
  const GemmProblem& p = problem_;
  if (bias_fused_)  // one plan serves every node of this problem, each with its own bias
    CUVIL_CUBLASLT(lt_.desc_set(desc_, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &o.bias, sizeof o.bias));
  const double alpha64 = o.alpha, beta64 = p.accumulate ? o.beta : 0.0;
  const float alpha32 = static_cast<float>(alpha64), beta32 = static_cast<float>(beta64);
  const bool f64 = p.dtype == DType::kF64;
  const void* alpha = f64 ? static_cast<const void*>(&alpha64) : &alpha32;
  const void* beta = f64 ? static_cast<const void*>(&beta64) : &beta32;
  CUVIL_CUBLASLT(lt_.matmul(handle, desc_, alpha, o.b, b_, o.a, a_, beta, p.accumulate ? o.c : o.d, d_, o.d, d_, &algo_,
                            workspace, workspace_, stream));

  EpilogueParams rest;
  rest.y = o.d;
  rest.dtype = p.dtype;
  rest.count = p.batch * p.m * p.n;
  rest.channels = p.n;
  if (p.bias && !bias_fused_) rest.bias = o.bias;
  if (!activation_fused_) rest.activation = {p.activation, p.activation_a, p.activation_b};
  if (rest.bias || rest.activation.kind != Activation::kNone) CUVIL_CUDA(launch_epilogue(rest, stream));
}

}  // namespace cuvil
