// cuDNN's backend (graph) API, opened at run time.
#pragma once

#include <cudnn_graph.h>

namespace cuvil::libs {

struct Cudnn {
  decltype(&::cudnnCreate) create;
  decltype(&::cudnnDestroy) destroy;
  decltype(&::cudnnSetStream) set_stream;
  decltype(&::cudnnGetVersion) get_version;
  decltype(&::cudnnGetErrorString) error_string;
  decltype(&::cudnnGetLastErrorString) last_error_string;
  decltype(&::cudnnBackendCreateDescriptor) create_descriptor;
  decltype(&::cudnnBackendDestroyDescriptor) destroy_descriptor;
  decltype(&::cudnnBackendFinalize) finalize;
  decltype(&::cudnnBackendSetAttribute) set_attribute;
  decltype(&::cudnnBackendGetAttribute) get_attribute;
  decltype(&::cudnnBackendExecute) execute;
};

// Opens the library on the first call; throws Error(kMissingLibrary) naming the pip package when it is not there.
const Cudnn& cudnn();

// Throws Error unless `status` is success: kNotImplemented where cuDNN says that it does not support what was asked
// for (another plan may do), kOutOfMemory, else kRuntime.
void cudnn_check(cudnnStatus_t status, const char* what);

}  // namespace cuvil::libs

#define CUVIL_CUDNN(call) ::cuvil::libs::cudnn_check((call), #call)
