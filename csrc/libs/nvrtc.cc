#include "libs/nvrtc.h"

#include <dlfcn.h>

#include <string>

#include "libs/dynlib.h"

namespace cuvil::libs {
namespace {

// NVRTC opens its built-ins library by soname only when it compiles, and pip's copy has no run path: loaded beforehand
// from the directory NVRTC itself came from, it is found. A failure is left for NVRTC to report.
void preload_builtins(const Nvrtc& table) {
  int major = 0, minor = 0;
  Dl_info info;
  if (table.version(&major, &minor) != kNvrtcSuccess) return;
  if (!dladdr(reinterpret_cast<void*>(table.version), &info) || !info.dli_fname) return;
  const std::string file = info.dli_fname;
  const size_t slash = file.rfind('/');
  if (slash == std::string::npos) return;
  const std::string name = "libnvrtc-builtins.so." + std::to_string(major) + "." + std::to_string(minor);
  dlopen((file.substr(0, slash + 1) + name).c_str(), RTLD_NOW | RTLD_LOCAL);
}

}  // namespace

const Nvrtc& nvrtc() {
  // A throwing initializer leaves the static unset, so a later call tries again.
  static const Nvrtc table = [] {
    static const DynLib lib({"libnvrtc.so.13", "libnvrtc.so.12"}, "nvidia-cuda-nvrtc");
    Nvrtc t;
    lib.load(t.version, "nvrtcVersion");
    lib.load(t.num_supported_archs, "nvrtcGetNumSupportedArchs");
    lib.load(t.supported_archs, "nvrtcGetSupportedArchs");
    lib.load(t.error_string, "nvrtcGetErrorString");
    lib.load(t.create_program, "nvrtcCreateProgram");
    lib.load(t.destroy_program, "nvrtcDestroyProgram");
    lib.load(t.compile_program, "nvrtcCompileProgram");
    lib.load(t.log_size, "nvrtcGetProgramLogSize");
    lib.load(t.log, "nvrtcGetProgramLog");
    lib.load(t.cubin_size, "nvrtcGetCUBINSize");
    lib.load(t.cubin, "nvrtcGetCUBIN");
    lib.load(t.ptx_size, "nvrtcGetPTXSize");
    lib.load(t.ptx, "nvrtcGetPTX");
    preload_builtins(t);
    return t;
  }();
  return table;
}

}  // namespace cuvil::libs
