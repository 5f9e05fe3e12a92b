#include "libs/nvrtc.h"

#include "libs/dynlib.h"

namespace cuvil::libs {

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
    return t;
  }();
  return table;
}

}  // namespace cuvil::libs
