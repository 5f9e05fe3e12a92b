// A shared library opened at run time, so that the plugin loads on machines that lack it and says what to install.
#pragma once

#include <initializer_list>
#include <string>

namespace cuvil::libs {

class DynLib {
 public:
  // Opens the first of `sonames` that loads: each is looked for in the directories of CUVIL_LIBRARY_PATH (colon
  // separated; Python sets it to the lib directories of pip's nvidia packages), then by plain soname, which finds
  // libraries that are loaded already and those of the system. Throws Error(kMissingLibrary), naming `pip_package` and
  // the loader's last message.
  DynLib(std::initializer_list<const char*> sonames, const char* pip_package);
  // Never closed: kernels and handles made through the library live as long as the process.
  ~DynLib() = default;
  DynLib(const DynLib&) = delete;
  DynLib& operator=(const DynLib&) = delete;

  // The file name that loaded, for messages.
  const std::string& path() const { return path_; }

  // The symbol's address; throws Error(kMissingLibrary) when the library is too old to have it.
  void* symbol(const char* name) const;
  // The same, null when absent.
  void* find(const char* name) const;

  // Points `fn` at symbol `name`: `lib.load(table.compile, "nvrtcCompileProgram")`.
  template <typename F>
  void load(F*& fn, const char* name) const {
    fn = reinterpret_cast<F*>(symbol(name));
  }

 private:
  void* handle_ = nullptr;
  std::string path_;
  std::string pip_package_;
};

}  // namespace cuvil::libs
