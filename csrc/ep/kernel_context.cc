#include "ep/kernel_context.h"

#include "ep/ep.h"
#include "ep/node_view.h"
#include "ep/status.h"

namespace cuvil::ep {
namespace {

bool at(const std::vector<bool>& all, int i) {
  return i >= 0 && static_cast<size_t>(i) < all.size() && all[static_cast<size_t>(i)];
}

const OrtValue* input_value(const OrtKernelContext* context, int i) {
  const OrtValue* value = nullptr;
  ort_check(api().KernelContext_GetInput(context, static_cast<size_t>(i), &value));
  return value;
}

[[noreturn]] void no_memory(const char* what, int i, const Dims& shape) {
  const std::string failure = Arena::take_last_failure();
  fail(ErrorKind::kOutOfMemory, what, i, " ", shape.to_string(),
       " has no memory: ", failure.empty() ? std::string("the allocation failed") : failure);
}

// A host address given to a GPU kernel costs the process its GPU context; say what is wrong instead.
void require_place(const OrtValue* value, bool on_host, const char* what, int i) {
  const OrtMemoryDevice* device = ep_api().Value_GetMemoryDevice(value);
  const bool is_cpu = !device || ep_api().MemoryDevice_GetDeviceType(device) == OrtMemoryInfoDeviceType_CPU;
  const bool reachable =
      on_host ? is_cpu || ep_api().MemoryDevice_GetMemoryType(device) == OrtDeviceMemoryType_HOST_ACCESSIBLE : !is_cpu;
  require(reachable, what, i, " is in ", is_cpu ? "host" : "GPU", " memory, the kernel needs it in ",
          on_host ? "host" : "GPU", " memory");
}

}  // namespace

KernelContext::KernelContext(Ep& ep, OrtKernelContext* context, cudaStream_t stream, const NodePorts& ports)
    : ep_(ep), context_(context), stream_(stream), ports_(ports) {}

KernelContext::~KernelContext() {
  for (void* p : scratch_) {
    try {
      ep_.memory().free(p);
    } catch (...) {  // not in use: impossible, and a destructor cannot report it
    }
  }
}

const DeviceInfo& KernelContext::device() const { return ep_.device().info(); }

bool KernelContext::has_input(int i) const { return at(ports_.has_input, i) && input_value(context_, i) != nullptr; }

Tensor KernelContext::input(int i) {
  const OrtValue* value = at(ports_.has_input, i) ? input_value(context_, i) : nullptr;
  require(value != nullptr, "input ", i, " is absent");
  const Tensor t = tensor_of(value);
  if (t.size() == 0) return t;
  if (!t.data) no_memory("input ", i, t.shape);
  require_place(value, at(ports_.input_on_host, i), "input ", i);
  return t;
}

bool KernelContext::has_output(int i) const { return at(ports_.has_output, i); }

Tensor KernelContext::output(int i, const Dims& shape) {
  require(has_output(i), "output ", i, " is absent");
  OrtValue* value = nullptr;
  const Ort::Status status(api().KernelContext_GetOutput(context_, static_cast<size_t>(i), shape.data(),
                                                         static_cast<size_t>(shape.rank()), &value));
  if (!status.IsOK()) {
    // ORT's "Allocation failed" does not say of what; the arena does.
    const std::string failure = Arena::take_last_failure();
    require(!failure.empty(), status.GetErrorMessage());
    fail(ErrorKind::kOutOfMemory, "output ", i, " ", shape.to_string(), " has no memory: ", failure);
  }
  require(value != nullptr, "ONNX Runtime gave no tensor for output ", i);
  const Tensor t = tensor_of(value);
  if (t.size() == 0) return t;
  if (!t.data) no_memory("output ", i, t.shape);
  require_place(value, at(ports_.output_on_host, i), "output ", i);
  return t;
}

void* KernelContext::scratch(size_t bytes) {
  if (bytes == 0) return nullptr;
  scratch_.push_back(nullptr);
  scratch_.back() = ep_.memory().allocate(bytes, stream_);
  return scratch_.back();
}

bool KernelContext::capturing() const { return ep_.capturing(); }

bool KernelContext::allow_tf32() const { return ep_.options().use_tf32; }

std::unique_ptr<SharedState>& KernelContext::shared_slot(std::type_index type) { return ep_.shared_slot(type); }

}  // namespace cuvil::ep
