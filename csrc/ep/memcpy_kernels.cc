#include "ep/memcpy_kernels.h"

#include <string>

#include "ep/data_transfer.h"
#include "ep/ep.h"
#include "ep/node_view.h"
#include "ep/status.h"

namespace cuvil::ep {
namespace {

class Memcpy : public OrtKernelImpl {
 public:
  Memcpy(Ep& ep, bool to_host, std::string where)
      : OrtKernelImpl{}, ep_(ep), to_host_(to_host), where_(std::move(where)) {
    ort_version_supported = ORT_API_VERSION;
    Release = [](OrtKernelImpl* self) noexcept { delete static_cast<Memcpy*>(self); };
    Compute = [](OrtKernelImpl* self, OrtKernelContext* context) noexcept -> OrtStatus* {
      auto* k = static_cast<Memcpy*>(self);
      try {
        k->compute(context);
        return nullptr;
      } catch (...) {
        k->ep_.run_failed();
        return status_of_current_exception(k->where_);
      }
    };
  }

 private:
  void compute(OrtKernelContext* context) {
    const DeviceGuard guard(ep_.device().info().id);
    require(!ep_.capturing(), "a copy between host and GPU cannot be part of a CUDA graph");
    const OrtValue* in = nullptr;
    ort_check(api().KernelContext_GetInput(context, 0, &in));
    const Tensor source = tensor_of(in);
    OrtValue* out = nullptr;
    ort_check(
        api().KernelContext_GetOutput(context, 0, source.shape.data(), static_cast<size_t>(source.shape.rank()), &out));
    const Tensor target = tensor_of(out);
    size_t bytes = 0;
    ort_check(api().GetTensorSizeInBytes(in, &bytes));
    if (bytes == 0) return;
    if (!target.data || !source.data)
      fail(ErrorKind::kOutOfMemory, "no memory for the copy: ", Arena::take_last_failure());
    void* named = nullptr;
    ort_check(api().KernelContext_GetGPUComputeStream(context, &named));
    const cudaStream_t stream = ep_.stream_for_kernel(static_cast<cudaStream_t>(named));
    // Without ORT's streams nobody else waits for the copy before the CPU reads or reuses host memory.
    copy_on(ep_.device(), stream, target.data, !to_host_, source.data, to_host_, bytes, /*wait=*/named == nullptr);
    ep_.kernel_done(stream);
  }

  Ep& ep_;
  const bool to_host_;
  const std::string where_;
};

OrtStatus* create(void* to_host, const OrtKernelInfo* info, OrtKernelImpl** out) noexcept {
  return guarded([&] {
    const OrtEp* raw = nullptr;
    ort_check(ep_api().KernelInfo_GetEp(info, &raw));
    Ep& ep = *const_cast<Ep*>(static_cast<const Ep*>(raw));
    const KernelNodeView view(info, ep.device().info());
    *out = new Memcpy(ep, to_host != nullptr, describe_node(view));
  });
}

}  // namespace

void add_memcpy_kernels(Ort::KernelRegistry& registry) {
  static char yes;
  for (const bool to_host : {false, true}) {
    Ort::KernelDefBuilder builder;
    builder.SetDomain("").SetOperatorType(to_host ? "MemcpyToHost" : "MemcpyFromHost").SetSinceVersion(1, 1);
    builder.SetExecutionProvider(kEpName);
    if (to_host) {
      builder.SetOutputMemType(0, OrtMemTypeCPUOutput);
    } else {
      builder.SetInputMemType(0, OrtMemTypeCPUInput);
    }
    const Ort::KernelDef def = builder.Build();
    Ort::ThrowOnError(registry.AddKernel(def, create, to_host ? &yes : nullptr));
  }
}

}  // namespace cuvil::ep
