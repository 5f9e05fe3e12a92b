#include "libs/cublaslt.h"

#include "core/error.h"
#include "libs/dynlib.h"

namespace cuvil::libs {

const CublasLt& cublaslt() {
  static const CublasLt table = [] {
    static const DynLib lib({"libcublasLt.so.13", "libcublasLt.so.12"}, "nvidia-cublas");
    CublasLt t;
    lib.load(t.create, "cublasLtCreate");
    lib.load(t.destroy, "cublasLtDestroy");
    lib.load(t.get_version, "cublasLtGetVersion");
    lib.load(t.matmul, "cublasLtMatmul");
    lib.load(t.layout_create, "cublasLtMatrixLayoutCreate");
    lib.load(t.layout_destroy, "cublasLtMatrixLayoutDestroy");
    lib.load(t.layout_set, "cublasLtMatrixLayoutSetAttribute");
    lib.load(t.desc_create, "cublasLtMatmulDescCreate");
    lib.load(t.desc_destroy, "cublasLtMatmulDescDestroy");
    lib.load(t.desc_set, "cublasLtMatmulDescSetAttribute");
    lib.load(t.preference_create, "cublasLtMatmulPreferenceCreate");
    lib.load(t.preference_destroy, "cublasLtMatmulPreferenceDestroy");
    lib.load(t.preference_set, "cublasLtMatmulPreferenceSetAttribute");
    lib.load(t.heuristic, "cublasLtMatmulAlgoGetHeuristic");
    lib.load(t.algo_check, "cublasLtMatmulAlgoCheck");
    return t;
  }();
  return table;
}

void cublaslt_check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  const char* name = "unknown status";
  switch (status) {
    case CUBLAS_STATUS_NOT_INITIALIZED:
      name = "not initialized";
      break;
    case CUBLAS_STATUS_ALLOC_FAILED:
      name = "allocation failed";
      break;
    case CUBLAS_STATUS_INVALID_VALUE:
      name = "invalid value";
      break;
    case CUBLAS_STATUS_ARCH_MISMATCH:
      name = "architecture mismatch";
      break;
    case CUBLAS_STATUS_EXECUTION_FAILED:
      name = "execution failed";
      break;
    case CUBLAS_STATUS_INTERNAL_ERROR:
      name = "internal error";
      break;
    case CUBLAS_STATUS_NOT_SUPPORTED:
      name = "not supported";
      break;
    default:
      break;
  }
  fail(status == CUBLAS_STATUS_ALLOC_FAILED ? ErrorKind::kOutOfMemory : ErrorKind::kRuntime, "cuBLASLt: ", what, ": ",
       name, " (", static_cast<int>(status), ")");
}

}  // namespace cuvil::libs
