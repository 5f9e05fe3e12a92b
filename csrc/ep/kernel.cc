#include "ep/kernel.h"

#include "ep/control_flow.h"
#include "ep/device.h"
#include "ep/ep.h"
#include "ep/node_view.h"
#include "ep/status.h"

namespace cuvil::ep {
namespace {

std::vector<bool> marked(int count, const std::vector<int>& indices) {
  std::vector<bool> out(static_cast<size_t>(count));
  for (const int i : indices)
    if (i < count) out[static_cast<size_t>(i)] = true;
  return out;
}

}  // namespace

Kernel::Kernel(Ep& ep, const OpEntry& entry, const OrtKernelInfo* info) : OrtKernelImpl{}, ep_(ep) {
  const DeviceGuard guard(ep.device().info().id);
  const KernelNodeView view(info, ep.device().info());
  where_ = describe_node(view);
  for (int i = 0; i < view.num_inputs(); ++i) ports_.has_input.push_back(view.has_input(i));
  for (int i = 0; i < view.num_outputs(); ++i) ports_.has_output.push_back(view.has_output(i));
  ports_.input_on_host = marked(view.num_inputs(), entry.cpu_inputs);
  ports_.output_on_host = marked(view.num_outputs(), entry.cpu_outputs);
  try {
    op_ = entry.create(view);
  } catch (const Error& e) {
    throw Error(e.kind(), where_ + ": " + e.what());
  }
  set_callbacks();
}

Kernel::~Kernel() {
  try {
    const DeviceGuard guard(ep_.device().info().id);
    op_.reset();
  } catch (...) {  // the device is lost; its memory is too
  }
}

OrtStatus* Kernel::create(void* state, const OrtKernelInfo* info, OrtKernelImpl** out) noexcept {
  return guarded([&] {
    const OrtEp* ep = nullptr;
    ort_check(ep_api().KernelInfo_GetEp(info, &ep));
    Ep& ours = *const_cast<Ep*>(static_cast<const Ep*>(ep));
    const auto& entry = *static_cast<const OpEntry*>(state);
    *out = entry.control_flow == ControlFlow::kNone ? new Kernel(ours, entry, info)
                                                    : new_control_flow_kernel(ours, entry.control_flow, info);
  });
}

void Kernel::set_callbacks() {
  ort_version_supported = ORT_API_VERSION;
  Release = [](OrtKernelImpl* self) noexcept { delete static_cast<Kernel*>(self); };
  Compute = [](OrtKernelImpl* self, OrtKernelContext* context) noexcept -> OrtStatus* {
    auto* k = static_cast<Kernel*>(self);
    try {
      k->compute(context);
      return nullptr;
    } catch (...) {
      k->ep_.run_failed();
      return status_of_current_exception(k->where_);
    }
  };
  PrePackWeight = [](OrtKernelImpl* self, const OrtValue* weight, int input, OrtAllocator*,
                     OrtSharedPrePackedWeightCache*, bool* is_packed) noexcept -> OrtStatus* {
    auto* k = static_cast<Kernel*>(self);
    *is_packed = false;
    try {
      *is_packed = k->prepack(weight, input);
      return nullptr;
    } catch (...) {
      return status_of_current_exception(k->where_);
    }
  };
}

void Kernel::compute(OrtKernelContext* ort_context) {
  const DeviceGuard guard(ep_.device().info().id);
  void* named = nullptr;
  ort_check(api().KernelContext_GetGPUComputeStream(ort_context, &named));
  const cudaStream_t stream = ep_.stream_for_kernel(static_cast<cudaStream_t>(named));
  try {
    KernelContext context(ep_, ort_context, stream, ports_);
    op_->compute(context);
  } catch (const Error&) {
    ep_.check_device();  // a lost device explains more than the call that noticed it
    throw;
  }
  ep_.kernel_done(stream);
}

bool Kernel::prepack(const OrtValue* value, int input) {
  const auto i = static_cast<size_t>(input);
  if (i >= ports_.has_input.size() || ports_.input_on_host[i]) return false;
  const DeviceGuard guard(ep_.device().info().id);
  const cudaStream_t stream = ep_.stream_for_kernel(nullptr);
  if (!op_->prepack(input, tensor_of(value), stream)) return false;
  ports_.has_input[i] = false;
  CUVIL_CUDA(cudaStreamSynchronize(stream));  // ORT frees the original at once
  return true;
}

}  // namespace cuvil::ep
