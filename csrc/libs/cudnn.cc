#include "libs/cudnn.h"

#include "core/error.h"
#include "libs/cublaslt.h"
#include "libs/dynlib.h"
#include "libs/nvrtc.h"

namespace cuvil::libs {
namespace {

// cuDNN opens cuBLAS and NVRTC itself, by soname, when an engine needs them. Pip keeps those in directories of other
// packages: opened here first, they are found. Without one, cuDNN offers fewer engines, so a failure is no error.
void preload_companions() {
  const auto attempt = [](auto&& open) {
    try {
      open();
    } catch (const Error&) {
    }
  };
  attempt([] { cublaslt(); });
  attempt([] { DynLib({"libcublas.so.13", "libcublas.so.12"}, "nvidia-cublas"); });
  attempt([] { nvrtc(); });
}

}  // namespace

const Cudnn& cudnn() {
  static const Cudnn table = [] {
    preload_companions();
    static const DynLib lib({"libcudnn.so.9"}, "nvidia-cudnn-cu13");
    Cudnn t;
    lib.load(t.create, "cudnnCreate");
    lib.load(t.destroy, "cudnnDestroy");
    lib.load(t.set_stream, "cudnnSetStream");
    lib.load(t.get_version, "cudnnGetVersion");
    lib.load(t.error_string, "cudnnGetErrorString");
    lib.load(t.last_error_string, "cudnnGetLastErrorString");
    lib.load(t.create_descriptor, "cudnnBackendCreateDescriptor");
    lib.load(t.destroy_descriptor, "cudnnBackendDestroyDescriptor");
    lib.load(t.finalize, "cudnnBackendFinalize");
    lib.load(t.set_attribute, "cudnnBackendSetAttribute");
    lib.load(t.get_attribute, "cudnnBackendGetAttribute");
    lib.load(t.execute, "cudnnBackendExecute");
    return t;
  }();
  return table;
}

void cudnn_check(cudnnStatus_t status, const char* what) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  char detail[512] = "";
  cudnn().last_error_string(detail, sizeof detail);
  ErrorKind kind = ErrorKind::kRuntime;
  if (status == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
      status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED)
    kind = ErrorKind::kOutOfMemory;
  if (CUDNN_STATUS_CATEGORY(status) == CUDNN_STATUS_NOT_SUPPORTED) kind = ErrorKind::kNotImplemented;
  fail(kind, "cuDNN: ", what, ": ", cudnn().error_string(status), detail[0] ? ": " : "", detail);
}

}  // namespace cuvil::libs
