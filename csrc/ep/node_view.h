// NodeView over what ORT shows of a node: an OrtNode in GetCapability, an OrtKernelInfo when its kernel is made.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "ep/ort.h"
#include "ops/op.h"

namespace cuvil::ep {

// The parts that both sources give in the same form, read once.
class NodeFacts : public NodeView {
 public:
  std::string name() const override { return name_; }
  std::string op_type() const override { return op_type_; }
  int since_version() const override { return since_version_; }
  int num_inputs() const override { return static_cast<int>(inputs_.size()); }
  int num_outputs() const override { return static_cast<int>(outputs_.size()); }
  bool has_input(int i) const override { return at(inputs_, i).present; }
  bool has_output(int i) const override { return at(outputs_, i).present; }
  DType input_dtype(int i) const override { return at(inputs_, i).dtype; }
  DType output_dtype(int i) const override { return at(outputs_, i).dtype; }
  std::optional<Dims> input_shape(int i) const override { return at(inputs_, i).shape; }
  std::optional<Dims> output_shape(int i) const override { return at(outputs_, i).shape; }
  const DeviceInfo& device() const override { return device_; }
  // An input or output of known rank above kMaxRank: no op can describe it.
  bool has_deep_tensor() const {
    const auto deep = [](const Argument& a) { return a.too_deep; };
    return std::any_of(inputs_.begin(), inputs_.end(), deep) || std::any_of(outputs_.begin(), outputs_.end(), deep);
  }

 protected:
  struct Argument {
    bool present = false;
    bool too_deep = false;
    DType dtype = DType::kUndefined;
    std::optional<Dims> shape;
  };
  explicit NodeFacts(const DeviceInfo& device) : device_(device) {}
  static Argument argument(const OrtTypeInfo* type);
  static const Argument& at(const std::vector<Argument>& all, int i) {
    static const Argument absent;
    return i >= 0 && static_cast<size_t>(i) < all.size() ? all[static_cast<size_t>(i)] : absent;
  }

  const DeviceInfo& device_;
  std::string name_, op_type_;
  int since_version_ = 0;
  std::vector<Argument> inputs_, outputs_;
  mutable std::vector<Ort::Value> attribute_tensors_;  // ORT hands out copies; they live as long as the view
};

class GraphNodeView : public NodeFacts {
 public:
  GraphNodeView(const OrtNode* node, const DeviceInfo& device);
  std::optional<Tensor> constant_input(int i) const override;
  bool find(const char* attr, int64_t* v) const override;
  bool find(const char* attr, float* v) const override;
  bool find(const char* attr, std::string* v) const override;
  bool find(const char* attr, std::vector<int64_t>* v) const override;
  bool find(const char* attr, std::vector<float>* v) const override;
  bool find(const char* attr, std::vector<std::string>* v) const override;
  bool find(const char* attr, Tensor* v) const override;

  const std::vector<const OrtValueInfo*>& input_values() const { return input_values_; }
  const std::vector<const OrtValueInfo*>& output_values() const { return output_values_; }
  const std::string& domain() const { return domain_; }

 private:
  const OrtOpAttr* attribute(const char* name, OrtOpAttrType type) const;
  template <typename T>
  bool read_array(const char* attr, OrtOpAttrType type, std::vector<T>* v) const;

  const OrtNode* node_;
  std::string domain_;
  std::vector<const OrtValueInfo*> input_values_, output_values_;
};

class KernelNodeView : public NodeFacts {
 public:
  KernelNodeView(const OrtKernelInfo* info, const DeviceInfo& device);
  std::string first_output() const;
  std::optional<Tensor> constant_input(int i) const override;
  bool find(const char* attr, int64_t* v) const override;
  bool find(const char* attr, float* v) const override;
  bool find(const char* attr, std::string* v) const override;
  bool find(const char* attr, std::vector<int64_t>* v) const override;
  bool find(const char* attr, std::vector<float>* v) const override;
  bool find(const char* attr, std::vector<std::string>* v) const override;
  bool find(const char* attr, Tensor* v) const override;

 private:
  const OrtKernelInfo* info_;
};

// "node 'x' (Relu)" for messages; a node without a name goes by its first output.
std::string describe_node(const KernelNodeView& view);

// A tensor OrtValue as the ops see it; its data stays ORT's. Throws for non-tensors and ranks above kMaxRank.
Tensor tensor_of(const OrtValue* value);

}  // namespace cuvil::ep
