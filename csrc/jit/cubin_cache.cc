#include "jit/cubin_cache.h"

#include <cstdint>
#include <cstring>

#include "core/cache_dir.h"
#include "jit/compiler.h"

namespace cuvil::jit {
namespace {

constexpr char kMagic[] = "cuvil cubin 1\n";

// FNV-1a.
uint64_t hash(const char* data, size_t size) {
  uint64_t h = 0xcbf29ce484222325ull;
  for (size_t i = 0; i < size; ++i) h = (h ^ static_cast<unsigned char>(data[i])) * 0x100000001b3ull;
  return h;
}

std::string hex(uint64_t value) {
  std::string out(16, '0');
  for (size_t i = 16; i-- > 0; value >>= 4) out[i] = "0123456789abcdef"[value & 15];
  return out;
}

std::optional<std::filesystem::path> file_of(const std::string& key) {
  std::optional<std::filesystem::path> dir = cache_dir("pointwise");
  if (dir) *dir /= hex(hash(key.data(), key.size())) + ".cubin";
  return dir;
}

// Magic, the image's checksum, the key's length, the key, the image.
std::string header_of(const std::string& key, uint64_t checksum) {
  return kMagic + hex(checksum) + hex(key.size()) + key;
}

}  // namespace

std::string CacheKey::text() const {
  std::string out = arch + "\n" + nvrtc + "\n";
  for (const std::string& option : compile_options()) out += option + " ";
  return out + "\n" + source;
}

std::optional<std::vector<char>> read_cached(const CacheKey& key) {
  const std::string text = key.text();
  const std::optional<std::filesystem::path> path = file_of(text);
  if (!path) return std::nullopt;
  const std::optional<std::string> content = read_file(*path);
  const size_t header = header_of(text, 0).size();
  if (!content || content->size() <= header) return std::nullopt;
  const char* image = content->data() + header;
  const size_t size = content->size() - header;
  if (content->compare(0, header, header_of(text, hash(image, size))) != 0) return std::nullopt;
  return std::vector<char>(image, image + size);
}

void write_cached(const CacheKey& key, const std::vector<char>& image) {
  const std::string text = key.text();
  if (const std::optional<std::filesystem::path> path = file_of(text))
    write_file_atomically(*path,
                          header_of(text, hash(image.data(), image.size())) + std::string(image.begin(), image.end()));
}

}  // namespace cuvil::jit
