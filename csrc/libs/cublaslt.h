// cuBLASLt, opened at run time: no link dependency, so that the library loads (and says what is missing) without it.
#pragma once

#include <cublasLt.h>

#include <string>

namespace cuvil::libs {

struct CublasLt {
  decltype(&::cublasLtCreate) create;
  decltype(&::cublasLtDestroy) destroy;
  decltype(&::cublasLtGetVersion) get_version;
  decltype(&::cublasLtMatmul) matmul;
  decltype(&::cublasLtMatrixLayoutCreate) layout_create;
  decltype(&::cublasLtMatrixLayoutDestroy) layout_destroy;
  decltype(&::cublasLtMatrixLayoutSetAttribute) layout_set;
  decltype(&::cublasLtMatmulDescCreate) desc_create;
  decltype(&::cublasLtMatmulDescDestroy) desc_destroy;
  decltype(&::cublasLtMatmulDescSetAttribute) desc_set;
  decltype(&::cublasLtMatmulPreferenceCreate) preference_create;
  decltype(&::cublasLtMatmulPreferenceDestroy) preference_destroy;
  decltype(&::cublasLtMatmulPreferenceSetAttribute) preference_set;
  decltype(&::cublasLtMatmulAlgoGetHeuristic) heuristic;
  decltype(&::cublasLtMatmulAlgoCheck) algo_check;
};

// Opens the library on the first call; throws Error(kMissingLibrary) naming the pip package when it is not there.
const CublasLt& cublaslt();

// Throws Error(kRuntime, or kOutOfMemory) unless `status` is success.
void cublaslt_check(cublasStatus_t status, const char* what);

}  // namespace cuvil::libs

#define CUVIL_CUBLASLT(call) ::cuvil::libs::cublaslt_check((call), #call)
