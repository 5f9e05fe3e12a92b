#include "ep/status.h"

#include <new>

namespace cuvil::ep {
namespace {

OrtErrorCode code_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInvalidArgument:
      return ORT_INVALID_ARGUMENT;
    case ErrorKind::kNotImplemented:
      return ORT_NOT_IMPLEMENTED;
    case ErrorKind::kOutOfMemory:
    case ErrorKind::kMissingLibrary:
    case ErrorKind::kRuntime:
      return ORT_RUNTIME_EXCEPTION;
  }
  return ORT_RUNTIME_EXCEPTION;
}

OrtStatus* make_status(OrtErrorCode code, const std::string& where, const char* what) {
  const std::string message =
      where.empty() ? std::string(kEpName) + ": " + what : std::string(kEpName) + ": " + where + ": " + what;
  return api().CreateStatus(code, message.c_str());
}

}  // namespace

OrtStatus* status_of_current_exception(const std::string& where) noexcept {
  try {
    throw;
  } catch (const Error& e) {
    return make_status(code_of(e.kind()), where, e.what());
  } catch (const Ort::Exception& e) {
    const OrtErrorCode code = e.GetOrtErrorCode();
    return make_status(code == ORT_EP_FAIL || code == ORT_OK ? ORT_FAIL : code, where, e.what());
  } catch (const std::bad_alloc&) {
    return make_status(ORT_RUNTIME_EXCEPTION, where, "out of host memory");
  } catch (const std::exception& e) {
    return make_status(ORT_RUNTIME_EXCEPTION, where, e.what());
  } catch (...) {
    return make_status(ORT_RUNTIME_EXCEPTION, where, "unknown error");
  }
}

}  // namespace cuvil::ep
