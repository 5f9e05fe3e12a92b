#include "core/tuning_cache.h"

#include <cctype>
#include <cstdlib>
#include <sstream>

#include "core/cache_dir.h"
#include "core/error.h"

namespace cuvil {
namespace {

// "NVIDIA H200" as part of a file name.
std::string file_part(const std::string& name) {
  std::string out;
  for (const char c : name) out += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return out;
}

const std::string kThorough = "thorough ";

std::filesystem::path cache_path(const std::string& library, size_t version, const std::string& device) {
  const auto dir = cache_dir("tuning");
  return dir ? *dir / concat(library, '-', version, '-', file_part(device), ".txt") : std::filesystem::path();
}

}  // namespace

TuningMode TuningMode::from_environment() {
  const char* value = std::getenv("CUVIL_TUNING");
  const std::string text = value ? value : "";
  const std::string only = "only:";
  if (text.empty() || text == "on") return {};
  if (text == "thorough") return {.measure = true, .thorough = true, .only = ""};
  if (text == "off") return {.measure = false, .thorough = false, .only = ""};
  require(text.compare(0, only.size(), only) == 0, "CUVIL_TUNING is \"", text,
          "\"; on, off, thorough or only:PREFIX is required");
  return {.measure = false, .thorough = false, .only = text.substr(only.size())};
}

TuningCache::TuningCache(const std::string& library, size_t version, const std::string& device)
    : TuningCache(cache_path(library, version, device)) {}

TuningCache::TuningCache(std::filesystem::path path) : path_(std::move(path)) { merge_from_file(); }

std::map<std::string, std::string> TuningCache::parse(const std::string& text) {
  std::map<std::string, std::string> out;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    const size_t tab = line.find('\t');
    // getline also returns a last line without its line break: a write cut short, whose value cannot be trusted.
    if (in.eof() || tab == 0 || tab == std::string::npos || line.find('\t', tab + 1) != std::string::npos) continue;
    out.insert_or_assign(line.substr(0, tab), line.substr(tab + 1));
  }
  return out;
}

std::optional<std::string> TuningCache::find(const std::string& key, const TuningMode& mode) const {
  return find(mode.thorough ? kThorough + key : key);
}

void TuningCache::put(const std::string& key, const std::string& value, const TuningMode& mode) {
  if (mode.thorough) put(kThorough + key, value);
  put(key, value);
}

std::optional<std::string> TuningCache::find(const std::string& key) const {
  const auto it = entries_.find(key);
  if (it == entries_.end()) return std::nullopt;
  return it->second;
}

void TuningCache::put(const std::string& key, const std::string& value) {
  require((key + value).find_first_of("\t\r\n") == std::string::npos, "a tuning cache entry holds a tab or line break");
  merge_from_file();  // what other processes found meanwhile is kept
  entries_.insert_or_assign(key, value);
  write();
}

void TuningCache::merge_from_file() {
  if (path_.empty()) return;
  if (const auto text = read_file(path_)) entries_.merge(parse(*text));  // ours win
}

void TuningCache::write() const {
  if (path_.empty()) return;
  std::string text;
  for (const auto& [key, value] : entries_) text += key + '\t' + value + '\n';
  write_file_atomically(path_, text);  // a failure costs the next process its measurements, nothing else
}

}  // namespace cuvil
