// The two symbols that ORT looks up in a plugin library.
#include <string>

#include "ep/factory.h"
#include "ep/ort.h"
#include "ep/status.h"

#define CUVIL_EXPORT extern "C" __attribute__((visibility("default")))

CUVIL_EXPORT OrtStatus* CreateEpFactories(const char* /*registered_name*/, const OrtApiBase* base,
                                          const OrtLogger* logger, OrtEpFactory** factories, size_t max_factories,
                                          size_t* num_factories) {
  *num_factories = 0;
  const OrtApi* api = base->GetApi(ORT_API_VERSION);
  if (!api) {
    // Any older table can make a status; 22 is the first that knows plugin libraries.
    const OrtApi* older = base->GetApi(22);
    const std::string text = std::string(cuvil::ep::kEpName) + " needs ONNX Runtime 1." +
                             std::to_string(ORT_API_VERSION) + " or later, this is " + base->GetVersionString();
    return older ? older->CreateStatus(ORT_FAIL, text.c_str()) : nullptr;
  }
  Ort::InitApi(api);
  return cuvil::ep::guarded([&] {
    cuvil::require(max_factories >= 1, "ORT gave no room for a factory");
    factories[0] = new cuvil::ep::Factory(logger);
    *num_factories = 1;
  });
}

CUVIL_EXPORT OrtStatus* ReleaseEpFactory(OrtEpFactory* factory) {
  return cuvil::ep::guarded([&] { delete static_cast<cuvil::ep::Factory*>(factory); });
}
