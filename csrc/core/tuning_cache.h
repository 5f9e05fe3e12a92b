// Choices found by measuring (which algorithm of a library is fastest for a problem), kept across processes.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

namespace cuvil {

// The environment variable CUVIL_TUNING. "on" measures the few candidates that a library ranks highest, "thorough" all
// that it offers; what that finds is what "on" uses from then on. For users who want no measuring and for tests of one
// way in particular, "off" takes the first candidate that works and "only:PREFIX" the first whose name begins so;
// neither uses the cache.
struct TuningMode {
  bool measure = true;
  bool thorough = false;
  std::string only;
  static TuningMode from_environment();
};

// One text file per library, library version and device in the per-user cache directory: a line a problem, key and
// value separated by a tab. Another version or device starts an empty one. Any failure of the file system leaves a
// cache that works in memory. Not thread-safe; several processes may share the file (the last writer of a key wins).
class TuningCache {
 public:
  TuningCache(const std::string& library, size_t version, const std::string& device);
  // For tests: this file, or memory only when empty.
  explicit TuningCache(std::filesystem::path path);

  std::optional<std::string> find(const std::string& key) const;
  // Remembers and writes through. Neither text may hold a tab or a line break.
  void put(const std::string& key, const std::string& value);
  // The same, for a mode: a choice made thoroughly serves both modes, any other only its own.
  std::optional<std::string> find(const std::string& key, const TuningMode& mode) const;
  void put(const std::string& key, const std::string& value, const TuningMode& mode);

  // The pairs in `text`; lines that are not "key<TAB>value" are dropped (a file cut short, another program's).
  static std::map<std::string, std::string> parse(const std::string& text);

 private:
  void merge_from_file();
  void write() const;

  std::filesystem::path path_;
  std::map<std::string, std::string> entries_;
};

}  // namespace cuvil
