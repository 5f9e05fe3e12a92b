// The one exception type. It is caught at the ABI edge and becomes an OrtStatus that names the node.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace cuvil {

enum class ErrorKind { kInvalidArgument, kNotImplemented, kOutOfMemory, kMissingLibrary, kRuntime };

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& what) : std::runtime_error(what), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

template <typename... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

template <typename... Parts>
[[noreturn]] void fail(ErrorKind kind, const Parts&... parts) {
  throw Error(kind, concat(parts...));
}

template <typename... Parts>
void require(bool ok, const Parts&... parts) {
  if (!ok) fail(ErrorKind::kInvalidArgument, parts...);
}

}  // namespace cuvil
