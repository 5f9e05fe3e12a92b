#include "ep/failed_ep.h"

namespace cuvil::ep {

FailedEp::FailedEp(OrtStatus* why) : why_(why) {
  ort_version_supported = ORT_API_VERSION;
  GetName = [](const OrtEp*) noexcept { return kEpName; };
  GetCapability = [](OrtEp* self, const OrtGraph*, OrtEpGraphSupportInfo*) noexcept {
    return static_cast<FailedEp*>(self)->again();
  };
  OnSessionInitializationEnd = [](OrtEp* self) noexcept { return static_cast<FailedEp*>(self)->again(); };
}

OrtStatus* FailedEp::again() const { return api().CreateStatus(why_.GetErrorCode(), why_.GetErrorMessage().c_str()); }

}  // namespace cuvil::ep
