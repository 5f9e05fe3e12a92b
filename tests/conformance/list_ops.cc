// The registered ops, for tests: one line "domain|type|since|until" an entry.
#include <string>

#include "ops/op.h"

extern "C" __attribute__((visibility("default"))) const char* cuvil_registered_ops() {
  static const std::string text = [] {
    std::string all;
    for (const cuvil::OpEntry& e : cuvil::registered_ops())
      all += std::string(e.domain) + '|' + e.type + '|' + std::to_string(e.since) + '|' +
             (e.until == INT_MAX ? "" : std::to_string(e.until)) + '\n';
    return all;
  }();
  return text.c_str();
}
