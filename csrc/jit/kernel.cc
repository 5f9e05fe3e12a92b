#include "jit/kernel.h"

#include <mutex>
#include <unordered_map>

#include "core/cuda_check.h"
#include "core/relaxed_capture.h"
#include "jit/compiler.h"
#include "jit/cubin_cache.h"

namespace cuvil::jit {
namespace {

cudaKernel_t load(const std::vector<char>& image, const char* name) {
  const RelaxedCapture relaxed;  // loading code allocates
  cudaLibrary_t library = nullptr;
  CUVIL_CUDA(cudaLibraryLoadData(&library, image.data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  cudaKernel_t kernel = nullptr;
  CUVIL_CUDA(cudaLibraryGetKernel(&kernel, library, name));
  // Lazy loading would put the work off to the first launch, which may be inside a capture.
  cudaFuncAttributes attributes;
  CUVIL_CUDA(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)));
  return kernel;
}

cudaKernel_t build(const std::string& source, const char* name, int sm) {
  const Target target = target_for(sm);
  const CacheKey key{source, target.arch, target.nvrtc};
  if (const std::optional<std::vector<char>> image = read_cached(key)) {
    try {
      return load(*image, name);
    } catch (const Error&) {
      // An intact file that this driver refuses: the kernel compiled below replaces it, or fails with the reason.
      cudaGetLastError();
    }
  }
  const std::vector<char> image = compile(source, target);
  const cudaKernel_t kernel = load(image, name);
  write_cached(key, image);
  return kernel;
}

}  // namespace

cudaKernel_t get_kernel(const std::string& source, const char* name, int sm) {
  static std::mutex mutex;
  // Handles made by cudaLibraryLoadData serve every device of the architecture, so the ordinal is not part of the key.
  static std::unordered_map<std::string, cudaKernel_t> kernels;
  const std::string key = std::to_string(sm) + "\n" + source;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto known = kernels.find(key);
  if (known != kernels.end()) return known->second;
  const cudaKernel_t kernel = build(source, name, sm);
  kernels.emplace(key, kernel);
  return kernel;
}

}  // namespace cuvil::jit
