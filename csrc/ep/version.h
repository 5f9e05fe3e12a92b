// The library's version, shown by ORT and part of cache keys.
#pragma once

namespace cuvil::ep {

#ifndef CUVIL_VERSION
#define CUVIL_VERSION "0.1.0"
#endif
constexpr const char* kVersion = sizeof(CUVIL_VERSION) > 1 ? CUVIL_VERSION : "0.0.0";  // a build without a package

}  // namespace cuvil::ep
