// The contract between an op's glue (csrc/ops/<op>.cc) and the execution provider (csrc/ep).
//
// An op file defines a class derived from Op, and registers it with one or more static `Register` objects. The EP asks
// `supports` in GetCapability, calls `create` once a node when the session is built, `prepack` for each constant
// device input, then `compute` once a run. Errors are thrown as cuvil::Error; the EP adds the node's name.
#pragma once

#include <cuda_runtime_api.h>

#include <climits>
#include <memory>
#include <optional>
#include <string>
#include <typeindex>
#include <vector>

#include "core/cuda_check.h"
#include "core/dims.h"
#include "core/dtype.h"

namespace cuvil {

struct Tensor {
  void* data = nullptr;  // device memory, or host memory for inputs and outputs registered as CPU ones
  DType dtype = DType::kUndefined;
  Dims shape;

  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
  int64_t size() const { return shape.size(); }
  size_t bytes() const { return static_cast<size_t>(size()) * size_of(dtype); }
};

struct DeviceInfo {
  int id = 0;        // CUDA ordinal
  int sm = 0;        // 10 * major + minor, 90 for an H200
  int sm_count = 0;  // multiprocessors
  size_t l2_bytes = 0;
  size_t max_shared_per_block = 0;  // opt-in limit
  std::string name;
};

// A node as it stands in the graph: seen by `supports` (before the session is built) and by `create`.
class NodeView {
 public:
  virtual ~NodeView() = default;
  virtual std::string name() const = 0;
  virtual std::string op_type() const = 0;
  virtual int since_version() const = 0;
  virtual int num_inputs() const = 0;  // trailing absent optional inputs may be counted
  virtual int num_outputs() const = 0;
  virtual bool has_input(int i) const = 0;  // false for an absent optional input and for i >= num_inputs()
  virtual bool has_output(int i) const = 0;
  virtual DType input_dtype(int i) const = 0;  // kUndefined when absent or not a tensor
  virtual DType output_dtype(int i) const = 0;
  // Dimensions, -1 where symbolic; nullopt when the rank is unknown or above kMaxRank.
  virtual std::optional<Dims> input_shape(int i) const = 0;
  virtual std::optional<Dims> output_shape(int i) const = 0;
  // A constant initializer's value. In `supports` always host memory; in `create` host memory for inputs registered
  // in `cpu_inputs` and device memory for the others. Valid during the call only.
  virtual std::optional<Tensor> constant_input(int i) const = 0;
  virtual const DeviceInfo& device() const = 0;

  // Attributes: false when the node does not carry the attribute.
  virtual bool find(const char* attr, int64_t* v) const = 0;
  virtual bool find(const char* attr, float* v) const = 0;
  virtual bool find(const char* attr, std::string* v) const = 0;
  virtual bool find(const char* attr, std::vector<int64_t>* v) const = 0;
  virtual bool find(const char* attr, std::vector<float>* v) const = 0;
  virtual bool find(const char* attr, std::vector<std::string>* v) const = 0;
  // A tensor attribute (ConstantOfShape's value): host memory, valid during the call only.
  virtual bool find(const char* attr, Tensor* v) const = 0;

  template <typename T>
  T get(const char* attr, T fallback) const {
    T v{};
    return find(attr, &v) ? v : fallback;
  }
};

// Device memory that lives as long as its owner (packed weights, tables). Not for use inside `compute`.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(size_t bytes) : bytes_(bytes) {
    if (bytes) CUVIL_CUDA(cudaMalloc(&data_, bytes));
  }
  // A copy of host memory, there for every stream.
  DeviceBuffer(const void* values, size_t bytes) : DeviceBuffer(bytes) {
    CUVIL_CUDA(cudaMemcpy(data_, values, bytes, cudaMemcpyDefault));
    CUVIL_CUDA(cudaStreamSynchronize(nullptr));  // the copy returns before small or pageable values have arrived
  }
  ~DeviceBuffer() { cudaFree(data_); }
  DeviceBuffer(DeviceBuffer&& o) noexcept : data_(o.data_), bytes_(o.bytes_) { o.data_ = nullptr, o.bytes_ = 0; }
  DeviceBuffer& operator=(DeviceBuffer&& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(bytes_, o.bytes_);
    return *this;
  }
  void* get() const { return data_; }
  size_t bytes() const { return bytes_; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// Base of objects that ops share within one session (library handles, tuning tables): see OpContext::shared.
struct SharedState {
  virtual ~SharedState() = default;
};

// One execution of one node.
class OpContext {
 public:
  virtual ~OpContext() = default;
  virtual cudaStream_t stream() const = 0;
  virtual const DeviceInfo& device() const = 0;
  virtual bool has_input(int i) const = 0;
  virtual Tensor input(int i) = 0;  // throws when absent
  virtual bool has_output(int i) const = 0;
  // Allocates output i. `data` may be null when the shape holds no element. Equal to an input's data when ORT reuses
  // the input's buffer for a declared alias: nothing to copy then.
  virtual Tensor output(int i, const Dims& shape) = 0;
  // Stream-ordered memory, 256-byte aligned, returned when `compute` ends; legal while a graph is being captured.
  virtual void* scratch(size_t bytes) = 0;
  // True while the run is being captured into a CUDA Graph: measuring and synchronising are forbidden then. ORT runs
  // every node at least twice uncaptured before, so tuning belongs in those runs.
  virtual bool capturing() const = 0;
  // The EP option `use_tf32`: float32 products and convolutions may run on TF32 tensor cores.
  virtual bool allow_tf32() const { return false; }

  // The session's instance of T, made on first use: one set of handles an EP instance, so no lock is needed
  // (the EP serialises the runs of a session).
  template <typename T>
  T& shared() {
    std::unique_ptr<SharedState>& slot = shared_slot(std::type_index(typeid(T)));
    if (!slot) slot = std::make_unique<T>();
    return static_cast<T&>(*slot);
  }

 protected:
  virtual std::unique_ptr<SharedState>& shared_slot(std::type_index type) = 0;
};

class Op {
 public:
  virtual ~Op() = default;
  virtual void compute(OpContext& ctx) = 0;
  // Called once for each constant device input, weight in device memory. Returns true when the op keeps its own
  // packed copy: ORT then frees the original, and the input is absent (has_input false) in `compute`.
  // Work is enqueued on `stream`; the EP synchronises it afterwards.
  virtual bool prepack(int input, const Tensor& weight, cudaStream_t stream) {
    (void)input, (void)weight, (void)stream;
    return false;
  }
};

// Nodes with bodies, whose execution is ONNX Runtime's: it runs the nodes of the bodies, wherever they are placed.
enum class ControlFlow { kNone, kBranch, kLoop, kScan };

struct OpEntry {
  const char* domain = "";  // "", "cuvil" or "com.microsoft"
  const char* type = "";
  int since = 1;  // opset versions [since, until] in which the node's schema was introduced
  int until = INT_MAX;
  // "" when this node can run here, else the reason, for the placement report ("input 0 is string; ...").
  std::string (*supports)(const NodeView&) = nullptr;
  std::unique_ptr<Op> (*create)(const NodeView&) = nullptr;
  std::vector<int> cpu_inputs = {};               // indices whose data is wanted in host memory (shapes, axes, pads)
  std::vector<int> cpu_outputs = {};              // indices produced in host memory (Shape, Size)
  std::vector<std::pair<int, int>> aliases = {};  // {input, output} that share a buffer always (Reshape)
  std::vector<std::pair<int, int>> may_inplace = {};  // {input, output} the kernel can compute in place
  ControlFlow control_flow = ControlFlow::kNone;      // other than kNone: `create` is absent
};

// A static object of this type in an op's file makes the EP serve the op.
struct Register {
  explicit Register(OpEntry entry);
};

const std::vector<OpEntry>& registered_ops();

template <typename T>
std::unique_ptr<Op> make_op(const NodeView& node) {
  return std::make_unique<T>(node);
}

}  // namespace cuvil
