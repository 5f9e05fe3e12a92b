#include "core/cache_dir.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <iterator>

namespace cuvil {
namespace fs = std::filesystem;
namespace {

std::optional<fs::path> root() {
  const auto variable = [](const char* name) -> std::optional<fs::path> {
    const char* value = std::getenv(name);
    if (!value || !*value) return std::nullopt;
    return fs::path(value);
  };
  if (const auto own = variable("CUVIL_CACHE_DIR")) return own;
  if (const auto xdg = variable("XDG_CACHE_HOME")) return *xdg / "cuvil_onnx";
  if (const auto home = variable("HOME")) return *home / ".cache" / "cuvil_onnx";
  return std::nullopt;
}

bool write_all(int fd, const std::string& content) {
  for (size_t done = 0; done < content.size();) {
    const ssize_t n = ::write(fd, content.data() + done, content.size() - done);
    if (n <= 0) return false;
    done += static_cast<size_t>(n);
  }
  return true;
}

}  // namespace

std::optional<fs::path> cache_dir(const std::string& sub) {
  const std::optional<fs::path> base = root();
  if (!base) return std::nullopt;
  const fs::path dir = *base / sub;
  std::error_code error;
  if (fs::is_directory(dir, error)) return dir;
  if (!fs::create_directories(dir, error) && !fs::is_directory(dir, error)) return std::nullopt;
  // Kernels are run from here: nobody else may write them.
  fs::permissions(dir, fs::perms::owner_all, error);
  return dir;
}

std::optional<std::string> read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return std::nullopt;
  std::string content{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  if (in.bad()) return std::nullopt;
  return content;
}

bool write_file_atomically(const fs::path& path, const std::string& content) {
  static std::atomic<unsigned> serial{0};
  fs::path draft = path;
  draft += "." + std::to_string(::getpid()) + "." + std::to_string(serial++) + ".tmp";
  const int fd = ::open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return false;
  const bool written = write_all(fd, content);
  // close reports delayed write errors (a full disk over a network file system).
  const bool closed = ::close(fd) == 0;
  if (written && closed && std::rename(draft.c_str(), path.c_str()) == 0) return true;
  ::unlink(draft.c_str());
  return false;
}

}  // namespace cuvil
