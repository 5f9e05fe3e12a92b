// The library's version, shown by ORT and part of cache keys.
#pragma once

namespace cuvil::ep {

#ifndef CUVIL_VERSION
#define CUVIL_VERSION "0.1.0"
#endif
constexpr const char* kVersion = CUVIL_VERSION;

}  // namespace cuvil::ep
