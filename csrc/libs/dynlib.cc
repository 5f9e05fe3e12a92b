#include "libs/dynlib.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <vector>

#include "core/error.h"

namespace cuvil::libs {
namespace {

std::vector<std::string> search_directories() {
  std::vector<std::string> out;
  const char* list = std::getenv("CUVIL_LIBRARY_PATH");
  std::istringstream in(list ? list : "");
  for (std::string dir; std::getline(in, dir, ':');)
    if (!dir.empty()) out.push_back(dir);
  return out;
}

}  // namespace

DynLib::DynLib(std::initializer_list<const char*> sonames, const char* pip_package) : pip_package_(pip_package) {
  std::string message;
  const auto open = [&](const std::string& path) {
    // RTLD_GLOBAL is not used: symbols of two versions of one library in a process must not mix.
    handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_) path_ = path;
    // The first failure is kept: of a file that exists if there is one, which tells more than "no such file".
    const char* reason = handle_ ? nullptr : dlerror();
    if (reason && message.empty()) message = reason;
    return handle_ != nullptr;
  };
  const std::vector<std::string> directories = search_directories();
  for (const char* soname : sonames) {
    for (const std::string& dir : directories) {
      const std::string path = dir + "/" + soname;
      std::error_code ignored;
      if (std::filesystem::exists(path, ignored) && open(path)) return;
    }
    if (open(soname)) return;
  }
  fail(ErrorKind::kMissingLibrary, *sonames.begin(), " was not found: install it with `pip install ", pip_package_,
       "`, or add its directory to CUVIL_LIBRARY_PATH (", message, ")");
}

void* DynLib::find(const char* name) const { return dlsym(handle_, name); }

void* DynLib::symbol(const char* name) const {
  void* address = find(name);
  if (!address)
    fail(ErrorKind::kMissingLibrary, path_, " has no symbol ", name, ": a newer `", pip_package_, "` is needed");
  return address;
}

}  // namespace cuvil::libs
