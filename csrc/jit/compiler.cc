#include "jit/compiler.h"

#include <algorithm>

#include "core/error.h"
#include "libs/nvrtc.h"

namespace cuvil::jit {
namespace {

void check(int code, const char* what) {
  if (code != libs::kNvrtcSuccess) fail(ErrorKind::kRuntime, what, ": ", libs::nvrtc().error_string(code));
}

struct Compilation {
  explicit Compilation(const std::string& source) {
    check(libs::nvrtc().create_program(&handle, source.c_str(), "cuvil_pointwise.cu", 0, nullptr, nullptr),
          "nvrtcCreateProgram");
  }
  ~Compilation() { libs::nvrtc().destroy_program(&handle); }
  Compilation(const Compilation&) = delete;
  Compilation& operator=(const Compilation&) = delete;

  std::string log() const {
    size_t size = 0;
    if (libs::nvrtc().log_size(handle, &size) != libs::kNvrtcSuccess || size < 2) return "";
    std::string text(size, '\0');
    libs::nvrtc().log(handle, text.data());
    return text.substr(0, text.find('\0'));
  }

  libs::NvrtcProgram* handle = nullptr;
};

}  // namespace

Target target_for(int sm) {
  const libs::Nvrtc& nvrtc = libs::nvrtc();
  int major = 0, minor = 0, count = 0;
  check(nvrtc.version(&major, &minor), "nvrtcVersion");
  check(nvrtc.num_supported_archs(&count), "nvrtcGetNumSupportedArchs");
  std::vector<int> archs(static_cast<size_t>(count));
  check(nvrtc.supported_archs(archs.data()), "nvrtcGetSupportedArchs");
  int best = 0;
  for (int arch : archs)
    if (arch <= sm) best = std::max(best, arch);
  if (best == 0)
    fail(ErrorKind::kNotImplemented, "NVRTC ", major, ".", minor, " does not support this device's architecture, sm_",
         sm);
  // Machine code runs on later minors of its major only; PTX on everything later.
  return {concat(best / 10 == sm / 10 ? "sm_" : "compute_", best), concat(major, ".", minor)};
}

const std::vector<std::string>& compile_options() {
  static const std::vector<std::string> options = {"--std=c++17",     "--fmad=false",
                                                   "--prec-div=true", "--prec-sqrt=true",
                                                   "--ftz=false",     "--device-as-default-execution-space"};
  return options;
}

std::vector<char> compile(const std::string& source, const Target& target) {
  const libs::Nvrtc& nvrtc = libs::nvrtc();
  Compilation program(source);
  const std::string arch = "--gpu-architecture=" + target.arch;
  std::vector<const char*> options = {arch.c_str()};
  for (const std::string& option : compile_options()) options.push_back(option.c_str());
  const int code = nvrtc.compile_program(program.handle, static_cast<int>(options.size()), options.data());
  if (code != libs::kNvrtcSuccess)
    fail(ErrorKind::kRuntime, "NVRTC ", target.nvrtc, " failed for ", target.arch, ": ", nvrtc.error_string(code), "\n",
         program.log());
  const bool cubin = target.arch.starts_with("sm_");
  size_t size = 0;
  check((cubin ? nvrtc.cubin_size : nvrtc.ptx_size)(program.handle, &size), "size of the compiled kernel");
  std::vector<char> image(size);
  check((cubin ? nvrtc.cubin : nvrtc.ptx)(program.handle, image.data()), "compiled kernel");
  return image;
}

}  // namespace cuvil::jit
