// Compiled kernels on disk.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace cuvil::jit {

// What determines a compiled kernel: the whole source (hence program, dtypes, specialisation and this library's code
// generator), the architecture, the options and NVRTC's version.
struct CacheKey {
  std::string source;
  std::string arch;
  std::string nvrtc;

  std::string text() const;
};

// nullopt when absent, unreadable, damaged or of another key.
std::optional<std::vector<char>> read_cached(const CacheKey& key);
// Does nothing when the cache directory is not writable.
void write_cached(const CacheKey& key, const std::vector<char>& image);

}  // namespace cuvil::jit
