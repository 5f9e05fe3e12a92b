#include "ep/node_view.h"

namespace cuvil::ep {
namespace {

// ORT answers a missing or differently typed attribute with an error: here that is simply "no".
bool succeeded(OrtStatus* status) { return Ort::Status(status).IsOK(); }

std::string text_of(OrtStatus* (*read)(const OrtKernelInfo*, char*, size_t*), const OrtKernelInfo* info) {
  size_t size = 0;
  ort_check(read(info, nullptr, &size));
  std::string text(size, '\0');
  ort_check(read(info, text.data(), &size));
  text.resize(size ? size - 1 : 0);  // the size counts the terminating zero
  return text;
}

bool is_named(OrtStatus* (*read)(const OrtKernelInfo*, size_t, char*, size_t*), const OrtKernelInfo* info, size_t i) {
  size_t size = 0;
  return succeeded(read(info, i, nullptr, &size)) && size > 1;
}

}  // namespace

Tensor tensor_of(const OrtValue* value) {
  ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  const int64_t* dims = nullptr;
  size_t rank = 0;
  ort_check(api().GetTensorElementTypeAndShapeDataReference(value, &type, &dims, &rank));
  Tensor t;
  t.dtype = static_cast<DType>(type);
  t.shape = Dims(dims, rank);
  const void* data = nullptr;
  ort_check(api().GetTensorData(value, &data));
  t.data = const_cast<void*>(data);
  return t;
}

NodeFacts::Argument NodeFacts::argument(const OrtTypeInfo* type) {
  Argument a;
  a.present = true;
  const OrtTensorTypeAndShapeInfo* tensor = nullptr;
  if (!type || !succeeded(api().CastTypeInfoToTensorInfo(type, &tensor)) || !tensor) return a;
  ONNXTensorElementDataType element = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  ort_check(api().GetTensorElementType(tensor, &element));
  a.dtype = static_cast<DType>(element);
  size_t rank = 0;
  // A scalar and an unknown rank both have no dimensions; only the second has no shape.
  if (!api().TensorTypeAndShape_HasShape(tensor)) return a;
  ort_check(api().GetDimensionsCount(tensor, &rank));
  a.too_deep = rank > kMaxRank;
  if (a.too_deep) return a;
  int64_t dims[kMaxRank] = {};
  ort_check(api().GetDimensions(tensor, dims, rank));
  a.shape = Dims(dims, rank);
  return a;
}

GraphNodeView::GraphNodeView(const OrtNode* node, const DeviceInfo& device) : NodeFacts(device), node_(node) {
  const char* text = nullptr;
  ort_check(api().Node_GetName(node, &text));
  name_ = text;
  ort_check(api().Node_GetOperatorType(node, &text));
  op_type_ = text;
  ort_check(api().Node_GetDomain(node, &text));
  domain_ = std::string(text) == "ai.onnx" ? "" : text;
  ort_check(api().Node_GetSinceVersion(node, &since_version_));
  size_t inputs = 0, outputs = 0;
  ort_check(api().Node_GetNumInputs(node, &inputs));
  ort_check(api().Node_GetNumOutputs(node, &outputs));
  input_values_.resize(inputs);
  output_values_.resize(outputs);
  if (inputs) ort_check(api().Node_GetInputs(node, input_values_.data(), inputs));
  if (outputs) ort_check(api().Node_GetOutputs(node, output_values_.data(), outputs));
  const auto describe = [](const std::vector<const OrtValueInfo*>& values, std::vector<Argument>* out) {
    for (const OrtValueInfo* v : values) {
      const OrtTypeInfo* type = nullptr;
      if (v) ort_check(api().GetValueInfoTypeInfo(v, &type));
      out->push_back(v ? argument(type) : Argument{});
    }
  };
  describe(input_values_, &inputs_);
  describe(output_values_, &outputs_);
}

std::optional<Tensor> GraphNodeView::constant_input(int i) const {
  if (!has_input(i)) return std::nullopt;
  const OrtValueInfo* info = input_values_[static_cast<size_t>(i)];
  bool constant = false;
  ort_check(api().ValueInfo_IsConstantInitializer(info, &constant));
  const OrtValue* value = nullptr;
  if (!constant || !succeeded(api().ValueInfo_GetInitializerValue(info, &value)) || !value) return std::nullopt;
  return tensor_of(value);
}

const OrtOpAttr* GraphNodeView::attribute(const char* name, OrtOpAttrType type) const {
  const OrtOpAttr* attr = nullptr;
  OrtOpAttrType found = ORT_OP_ATTR_UNDEFINED;
  if (!succeeded(api().Node_GetAttributeByName(node_, name, &attr)) || !attr) return nullptr;
  return succeeded(api().OpAttr_GetType(attr, &found)) && found == type ? attr : nullptr;
}

bool GraphNodeView::find(const char* attr, int64_t* v) const {
  const OrtOpAttr* a = attribute(attr, ORT_OP_ATTR_INT);
  size_t size = 0;
  return a && succeeded(api().ReadOpAttr(a, ORT_OP_ATTR_INT, v, sizeof(*v), &size));
}

bool GraphNodeView::find(const char* attr, float* v) const {
  const OrtOpAttr* a = attribute(attr, ORT_OP_ATTR_FLOAT);
  size_t size = 0;
  return a && succeeded(api().ReadOpAttr(a, ORT_OP_ATTR_FLOAT, v, sizeof(*v), &size));
}

bool GraphNodeView::find(const char* attr, std::string* v) const {
  const OrtOpAttr* a = attribute(attr, ORT_OP_ATTR_STRING);
  if (!a) return false;
  std::string text;
  Ort::ThrowOnError(Ort::ConstOpAttr(a).GetValue(text));
  *v = std::move(text);
  return true;
}

template <typename T>
bool GraphNodeView::read_array(const char* attr, OrtOpAttrType type, std::vector<T>* v) const {
  const OrtOpAttr* a = attribute(attr, type);
  if (!a) return false;
  v->clear();
  Ort::ThrowOnError(Ort::ConstOpAttr(a).GetValueArray(*v));
  return true;
}

bool GraphNodeView::find(const char* attr, std::vector<int64_t>* v) const {
  return read_array(attr, ORT_OP_ATTR_INTS, v);
}
bool GraphNodeView::find(const char* attr, std::vector<float>* v) const {
  return read_array(attr, ORT_OP_ATTR_FLOATS, v);
}
bool GraphNodeView::find(const char* attr, std::vector<std::string>* v) const {
  return read_array(attr, ORT_OP_ATTR_STRINGS, v);
}

bool GraphNodeView::find(const char* attr, Tensor* v) const {
  const OrtOpAttr* a = attribute(attr, ORT_OP_ATTR_TENSOR);
  OrtValue* value = nullptr;
  if (!a || !succeeded(api().OpAttr_GetTensorAttributeAsOrtValue(a, &value)) || !value) return false;
  attribute_tensors_.emplace_back(value);
  *v = tensor_of(value);
  return true;
}

KernelNodeView::KernelNodeView(const OrtKernelInfo* info, const DeviceInfo& device) : NodeFacts(device), info_(info) {
  name_ = text_of(api().KernelInfo_GetNodeName, info);
  op_type_ = text_of(api().KernelInfo_GetOperatorType, info);
  ort_check(api().KernelInfo_GetOperatorSinceVersion(info, &since_version_));
  size_t inputs = 0, outputs = 0;
  ort_check(api().KernelInfo_GetInputCount(info, &inputs));
  ort_check(api().KernelInfo_GetOutputCount(info, &outputs));
  const auto describe = [](OrtTypeInfo* type) {
    const Argument a = argument(type);
    api().ReleaseTypeInfo(type);
    return a;
  };
  for (size_t i = 0; i < inputs; ++i) {
    OrtTypeInfo* type = nullptr;
    const bool present = is_named(api().KernelInfo_GetInputName, info, i) &&
                         succeeded(api().KernelInfo_GetInputTypeInfo(info, i, &type));
    inputs_.push_back(present ? describe(type) : Argument{});
  }
  for (size_t i = 0; i < outputs; ++i) {
    OrtTypeInfo* type = nullptr;
    const bool present = is_named(api().KernelInfo_GetOutputName, info, i) &&
                         succeeded(api().KernelInfo_GetOutputTypeInfo(info, i, &type));
    outputs_.push_back(present ? describe(type) : Argument{});
  }
}

std::string KernelNodeView::first_output() const {
  size_t size = 0;
  if (!succeeded(api().KernelInfo_GetOutputName(info_, 0, nullptr, &size))) return "";
  std::string text(size, '\0');
  if (!succeeded(api().KernelInfo_GetOutputName(info_, 0, text.data(), &size))) return "";
  text.resize(size ? size - 1 : 0);
  return text;
}

std::string describe_node(const KernelNodeView& view) {
  if (!view.name().empty()) return concat("node '", view.name(), "' (", view.op_type(), ")");
  return concat("the node (", view.op_type(), ") that gives '", view.first_output(), "'");
}

std::optional<Tensor> KernelNodeView::constant_input(int i) const {
  if (!has_input(i)) return std::nullopt;
  int constant = 0;
  const OrtValue* value = nullptr;
  if (!succeeded(api().KernelInfoGetConstantInput_tensor(info_, static_cast<size_t>(i), &constant, &value)))
    return std::nullopt;
  if (!constant || !value) return std::nullopt;
  return tensor_of(value);
}

bool KernelNodeView::find(const char* attr, int64_t* v) const {
  return succeeded(api().KernelInfoGetAttribute_int64(info_, attr, v));
}

bool KernelNodeView::find(const char* attr, float* v) const {
  return succeeded(api().KernelInfoGetAttribute_float(info_, attr, v));
}

bool KernelNodeView::find(const char* attr, std::string* v) const {
  size_t size = 0;
  if (!succeeded(api().KernelInfoGetAttribute_string(info_, attr, nullptr, &size))) return false;
  std::string text(size, '\0');
  if (!succeeded(api().KernelInfoGetAttribute_string(info_, attr, text.data(), &size))) return false;
  text.resize(size ? size - 1 : 0);
  *v = std::move(text);
  return true;
}

bool KernelNodeView::find(const char* attr, std::vector<int64_t>* v) const {
  size_t size = 0;
  if (!succeeded(api().KernelInfoGetAttributeArray_int64(info_, attr, nullptr, &size))) return false;
  v->resize(size);
  return size == 0 || succeeded(api().KernelInfoGetAttributeArray_int64(info_, attr, v->data(), &size));
}

bool KernelNodeView::find(const char* attr, std::vector<float>* v) const {
  size_t size = 0;
  if (!succeeded(api().KernelInfoGetAttributeArray_float(info_, attr, nullptr, &size))) return false;
  v->resize(size);
  return size == 0 || succeeded(api().KernelInfoGetAttributeArray_float(info_, attr, v->data(), &size));
}

bool KernelNodeView::find(const char* attr, std::vector<std::string>* v) const {
  Ort::AllocatorWithDefaultOptions host;
  char** texts = nullptr;
  size_t size = 0;
  if (!succeeded(api().KernelInfoGetAttributeArray_string(info_, attr, host, &texts, &size))) return false;
  v->assign(texts, texts + size);
  for (size_t i = 0; i < size; ++i) host.Free(texts[i]);
  host.Free(texts);
  return true;
}

bool KernelNodeView::find(const char* attr, Tensor* v) const {
  const Ort::AllocatorWithDefaultOptions host;
  OrtValue* value = nullptr;
  if (!succeeded(api().KernelInfoGetAttribute_tensor(info_, attr, host, &value)) || !value) return false;
  attribute_tensors_.emplace_back(value);
  *v = tensor_of(value);
  return true;
}

}  // namespace cuvil::ep
