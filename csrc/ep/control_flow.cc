#include "ep/control_flow.h"

#include <memory>

#include "ep/data_transfer.h"
#include "ep/ep.h"
#include "ep/node_view.h"
#include "ep/status.h"

namespace cuvil::ep {
namespace {

// Joins what the iterations gave to an output that stacks them.
class LoopHelper : public OrtLoopKernelHelper {
 public:
  explicit LoopHelper(Ep& ep) : OrtLoopKernelHelper{}, ep_(ep) {
    ort_version_supported = ORT_API_VERSION;
    Release = [](OrtLoopKernelHelper* self) noexcept { delete static_cast<LoopHelper*>(self); };
    ConcatOutput = [](OrtLoopKernelHelper* self, void* stream, const OrtValue* const* values, size_t count, void* out,
                      size_t bytes) noexcept -> OrtStatus* {
      return guarded([&] { static_cast<LoopHelper*>(self)->concat(stream, values, count, out, bytes); });
    };
  }

 private:
  void concat(void* named, const OrtValue* const* values, size_t count, void* out, size_t room) {
    const DeviceGuard guard(ep_.device().info().id);
    const cudaStream_t stream = ep_.stream_for_kernel(static_cast<cudaStream_t>(named));
    size_t at = 0;
    for (size_t i = 0; i < count; ++i) {
      size_t bytes = 0;
      ort_check(api().GetTensorSizeInBytes(values[i], &bytes));
      require(at + bytes <= room, "the outputs of ", count, " iterations exceed the ", room, " bytes for all of them");
      if (bytes == 0) continue;
      CUVIL_CUDA(
          cudaMemcpyAsync(static_cast<char*>(out) + at, tensor_of(values[i]).data, bytes, cudaMemcpyDefault, stream));
      at += bytes;
    }
    ep_.kernel_done(stream);
  }

  Ep& ep_;
};

class ScanHelper : public OrtScanKernelHelper {
 public:
  ScanHelper() : OrtScanKernelHelper{} {
    ort_version_supported = ORT_API_VERSION;
    Release = [](OrtScanKernelHelper* self) noexcept { delete static_cast<ScanHelper*>(self); };
    // Only called for axes other than the first, with which the node is not taken.
    Transpose = [](OrtScanKernelHelper*, const size_t*, size_t, const OrtValue*, OrtSyncStream*,
                   OrtValue*) noexcept -> OrtStatus* {
      return guarded([] { fail(ErrorKind::kNotImplemented, "scan axes other than 0 are not served"); });
    };
  }
};

}  // namespace

OrtKernelImpl* new_control_flow_kernel(Ep& ep, ControlFlow kind, const OrtKernelInfo* info) {
  OrtKernelImpl* kernel = nullptr;
  // ORT releases a helper, also when it makes no kernel of it.
  if (kind == ControlFlow::kLoop) {
    ort_check(ep_api().CreateLoopKernel(info, new LoopHelper(ep), &kernel));
  } else if (kind == ControlFlow::kScan) {
    ort_check(ep_api().CreateScanKernel(info, new ScanHelper(), &kernel));
  } else {
    ort_check(ep_api().CreateIfKernel(info, &kernel));
  }
  return kernel;
}

}  // namespace cuvil::ep
