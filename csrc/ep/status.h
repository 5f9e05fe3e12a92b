// Exceptions stop at the ABI edge: every callback that ORT may call runs its body inside `guarded`.
#pragma once

#include <exception>
#include <string>

#include "core/error.h"
#include "ep/ort.h"

namespace cuvil::ep {

// The OrtStatus for the exception being handled. `where` ("node 'x' (Relu)") comes first in the message when not empty.
// ORT_EP_FAIL is never used: ORT's Python layer answers it by rebuilding the session on the CPU, silently.
OrtStatus* status_of_current_exception(const std::string& where) noexcept;

template <typename Body>
OrtStatus* guarded(Body&& body) noexcept {
  try {
    body();
    return nullptr;
  } catch (...) {
    return status_of_current_exception({});
  }
}

}  // namespace cuvil::ep
