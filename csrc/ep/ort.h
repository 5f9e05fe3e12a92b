// ONNX Runtime's headers, set up for a plugin library: the API table arrives in CreateEpFactories, not by linking.
#pragma once

#ifndef ORT_API_MANUAL_INIT
#define ORT_API_MANUAL_INIT
#endif
#include <onnxruntime_cxx_api.h>

#include <string>
#include <utility>

namespace cuvil::ep {

constexpr const char* kEpName = "CuvilExecutionProvider";
constexpr uint32_t kVendorId = 0x10DE;  // NVIDIA's PCI id

inline const OrtApi& api() { return Ort::GetApi(); }
inline const OrtEpApi& ep_api() { return Ort::GetEpApi(); }

// Throws Ort::Exception when the call failed.
inline void ort_check(OrtStatus* status) { Ort::ThrowOnError(status); }

}  // namespace cuvil::ep
