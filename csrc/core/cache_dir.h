// The per-user directory of compiled kernels and tuning results, and small files in it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace cuvil {

// CUVIL_CACHE_DIR, else $XDG_CACHE_HOME/cuvil_onnx, else ~/.cache/cuvil_onnx, with `sub` below it. Made (readable by
// the user only) when absent; nullopt when that fails or no such variable is set: callers go on without a cache.
std::optional<std::filesystem::path> cache_dir(const std::string& sub);

// The whole file; nullopt when it cannot be read.
std::optional<std::string> read_file(const std::filesystem::path& path);

// Writes a file so that readers and concurrent writers, of this process and others, see all of it or nothing. Returns
// false, leaving no partial file, when the disk is full or the directory is not writable.
bool write_file_atomically(const std::filesystem::path& path, const std::string& content);

}  // namespace cuvil
