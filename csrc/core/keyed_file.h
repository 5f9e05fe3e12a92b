// Cache files that are believed only when they are what was asked for.
#pragma once

#include <optional>
#include <string>

namespace cuvil {

// Where a cached thing lies: a folder below the cache directory, the ending of its files' names, and the key, which
// holds everything that determines the content.
struct KeyedFile {
  std::string folder;
  std::string extension;  // with its dot
  std::string key;
};

// A file holds its key in full and is believed only when it equals the wanted one and the checksum agrees, so neither
// a hash collision nor a damaged file is ever used. nullopt when absent, unreadable, damaged or of another key.
std::optional<std::string> read_keyed_file(const KeyedFile& file);
// Does nothing when the cache directory is not writable.
void write_keyed_file(const KeyedFile& file, const std::string& content);

}  // namespace cuvil
