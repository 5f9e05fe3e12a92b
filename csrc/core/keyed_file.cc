#include "core/keyed_file.h"

#include <cstdint>

#include "core/cache_dir.h"

namespace cuvil {
namespace {

constexpr char kMagic[] = "cuvil cache 1\n";

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

std::optional<std::filesystem::path> path_of(const KeyedFile& file) {
  std::optional<std::filesystem::path> dir = cache_dir(file.folder);
  if (dir) *dir /= hex(hash(file.key.data(), file.key.size())) + file.extension;
  return dir;
}

// Magic, the content's checksum, the key's length, the key; the content follows.
std::string header_of(const std::string& key, uint64_t checksum) {
  return kMagic + hex(checksum) + hex(key.size()) + key;
}

}  // namespace

std::optional<std::string> read_keyed_file(const KeyedFile& file) {
  const std::optional<std::filesystem::path> path = path_of(file);
  if (!path) return std::nullopt;
  const std::optional<std::string> all = read_file(*path);
  const size_t header = header_of(file.key, 0).size();
  if (!all || all->size() <= header) return std::nullopt;
  const uint64_t checksum = hash(all->data() + header, all->size() - header);
  if (all->compare(0, header, header_of(file.key, checksum)) != 0) return std::nullopt;
  return all->substr(header);
}

void write_keyed_file(const KeyedFile& file, const std::string& content) {
  if (const std::optional<std::filesystem::path> path = path_of(file))
    write_file_atomically(*path, header_of(file.key, hash(content.data(), content.size())) + content);
}

}  // namespace cuvil
