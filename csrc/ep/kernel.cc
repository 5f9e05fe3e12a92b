#include "ep/kernel.h"

#include <algorithm>

#include "ep/device.h"
#include "ep/ep.h"
#include "ep/node_view.h"
#include "ep/status.h"

namespace cuvil::ep {
namespace {

class KernelContext : public OpContext {
 public:
  KernelContext(Ep& ep, OrtKernelContext* context, cudaStream_t stream, const std::vector<bool>& has_input,
                const std::vector<bool>& has_output)
      : ep_(ep), context_(context), stream_(stream), has_input_(has_input), has_output_(has_output) {}
  ~KernelContext() override {
    for (void* p : scratch_) {
      try {
        ep_.memory().free(p);
      } catch (...) {  // not in use: impossible, and a destructor cannot report it
      }
    }
  }
  KernelContext(const KernelContext&) = delete;
  KernelContext& operator=(const KernelContext&) = delete;

  cudaStream_t stream() const override { return stream_; }
  const DeviceInfo& device() const override { return ep_.device().info(); }
  bool has_input(int i) const override { return at(has_input_, i) && value(i) != nullptr; }
  Tensor input(int i) override {
    require(has_input(i), "input ", i, " is absent");
    const Tensor t = tensor_of(value(i));
    require_memory(t, "input ", i);
    return t;
  }
  bool has_output(int i) const override { return at(has_output_, i); }
  Tensor output(int i, const Dims& shape) override {
    require(has_output(i), "output ", i, " is absent");
    OrtValue* out = nullptr;
    ort_check(api().KernelContext_GetOutput(context_, static_cast<size_t>(i), shape.data(),
                                            static_cast<size_t>(shape.rank()), &out));
    require(out != nullptr, "ORT gave no tensor for output ", i);
    const Tensor t = tensor_of(out);
    require_memory(t, "output ", i);
    return t;
  }
  void* scratch(size_t bytes) override {
    if (bytes == 0) return nullptr;
    scratch_.push_back(nullptr);
    scratch_.back() = ep_.memory().allocate(bytes, stream_);
    return scratch_.back();
  }
  bool capturing() const override { return ep_.capturing(); }
  bool allow_tf32() const override { return ep_.options().use_tf32; }

 protected:
  std::unique_ptr<SharedState>& shared_slot(std::type_index type) override { return ep_.shared_slot(type); }

 private:
  static bool at(const std::vector<bool>& all, int i) {
    return i >= 0 && static_cast<size_t>(i) < all.size() && all[static_cast<size_t>(i)];
  }
  const OrtValue* value(int i) const {
    const OrtValue* v = nullptr;
    ort_check(api().KernelContext_GetInput(context_, static_cast<size_t>(i), &v));
    return v;
  }
  // ORT's allocator interface has no errors: memory that could not be had arrives here as a null pointer.
  void require_memory(const Tensor& t, const char* what, int i) const {
    if (t.data || t.size() == 0) return;
    const std::string failure = ep_.memory().last_failure();
    fail(ErrorKind::kOutOfMemory, what, i, " ", t.shape.to_string(),
         " has no memory: ", failure.empty() ? std::string("the allocation failed") : failure);
  }

  Ep& ep_;
  OrtKernelContext* context_;
  const cudaStream_t stream_;
  const std::vector<bool>& has_input_;
  const std::vector<bool>& has_output_;
  std::vector<void*> scratch_;
};

bool contains(const std::vector<int>& all, int i) { return std::find(all.begin(), all.end(), i) != all.end(); }

}  // namespace

Kernel::Kernel(Ep& ep, const OpEntry& entry, const OrtKernelInfo* info) : OrtKernelImpl{}, ep_(ep), entry_(entry) {
  const DeviceGuard guard(ep.device().info().id);
  const KernelNodeView view(info, ep.device().info());
  where_ = concat("node '", view.name(), "' (", view.op_type(), ")");
  for (int i = 0; i < view.num_inputs(); ++i) has_input_.push_back(view.has_input(i));
  for (int i = 0; i < view.num_outputs(); ++i) has_output_.push_back(view.has_output(i));
  try {
    op_ = entry.create(view);
  } catch (const Error& e) {
    throw Error(e.kind(), where_ + ": " + e.what());
  }
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
    try {
      *is_packed = k->prepack(weight, input);
      return nullptr;
    } catch (...) {
      return status_of_current_exception(k->where_);
    }
  };
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
    *out = new Kernel(*const_cast<Ep*>(static_cast<const Ep*>(ep)), *static_cast<const OpEntry*>(state), info);
  });
}

void Kernel::compute(OrtKernelContext* ort_context) {
  const DeviceGuard guard(ep_.device().info().id);
  void* named = nullptr;
  ort_check(api().KernelContext_GetGPUComputeStream(ort_context, &named));
  const cudaStream_t stream = ep_.stream_for_kernel(static_cast<cudaStream_t>(named));
  try {
    KernelContext context(ep_, ort_context, stream, has_input_, has_output_);
    op_->compute(context);
  } catch (const Error&) {
    ep_.check_device();  // a lost device explains more than the call that noticed it
    throw;
  }
  ep_.kernel_done(stream);
}

bool Kernel::prepack(const OrtValue* value, int input) {
  if (contains(entry_.cpu_inputs, input)) return false;
  const DeviceGuard guard(ep_.device().info().id);
  const cudaStream_t stream = ep_.stream_for_kernel(nullptr);
  const bool packed = op_->prepack(input, tensor_of(value), stream);
  if (!packed) return false;
  has_input_[static_cast<size_t>(input)] = false;
  CUVIL_CUDA(cudaStreamSynchronize(stream));  // ORT frees the original at once
  return true;
}

}  // namespace cuvil::ep
