#include "jit/cubin_cache.h"

#include "core/keyed_file.h"
#include "jit/compiler.h"

namespace cuvil::jit {
namespace {

KeyedFile file_of(const CacheKey& key) { return {"pointwise", ".cubin", key.text()}; }

}  // namespace

std::string CacheKey::text() const {
  std::string out = arch + "\n" + nvrtc + "\n";
  for (const std::string& option : compile_options()) out += option + " ";
  return out + "\n" + source;
}

std::optional<std::vector<char>> read_cached(const CacheKey& key) {
  const std::optional<std::string> image = read_keyed_file(file_of(key));
  if (!image) return std::nullopt;
  return std::vector<char>(image->begin(), image->end());
}

void write_cached(const CacheKey& key, const std::vector<char>& image) {
  write_keyed_file(file_of(key), {image.begin(), image.end()});
}

}  // namespace cuvil::jit
