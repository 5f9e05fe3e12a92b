#include "ops/conv_graph.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace cuvil {
namespace {

enum Uid : int64_t { kX = 1, kW, kY, kBias, kZ, kVirtual };

constexpr size_t kMaxWorkspace = size_t{256} << 20;

cudnnDataType_t data_type(DType t) {
  switch (t) {
    case DType::kF16:
      return CUDNN_DATA_HALF;
    case DType::kBF16:
      return CUDNN_DATA_BFLOAT16;
    case DType::kF64:
      return CUDNN_DATA_DOUBLE;
    default:
      return CUDNN_DATA_FLOAT;
  }
}

cudnnDataType_t compute_type(DType t) { return t == DType::kF64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT; }

std::vector<int64_t> strides_of(const std::vector<int64_t>& dims, bool channels_last) {
  // dims are always [outer, channels, spatial...]; channels-last memory is [outer, spatial..., channels].
  std::vector<int64_t> strides(dims.size());
  int64_t step = 1;
  if (channels_last) strides[1] = step, step *= dims[1];
  for (size_t i = dims.size(); i-- > 2;) strides[i] = step, step *= dims[i];
  if (!channels_last) strides[1] = step, step *= dims[1];
  strides[0] = step;
  return strides;
}

CudnnDescriptor pointwise(cudnnPointwiseMode_t mode, DType dtype) {
  CudnnDescriptor d(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  d.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode);
  d.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, compute_type(dtype));
  return d;
}

// Not yet finalized, as every pointwise descriptor handed to add_pointwise.
CudnnDescriptor activation_descriptor(const ConvProblem& p) {
  const double a = p.activation_a, b = p.activation_b;
  const auto make = [&](cudnnPointwiseMode_t mode) { return pointwise(mode, p.dtype); };
  const auto with = [](CudnnDescriptor d, cudnnBackendAttributeName_t name, double v) {
    d.set(name, CUDNN_TYPE_DOUBLE, v);
    return d;
  };
  switch (p.activation) {
    case Activation::kRelu:
      return make(CUDNN_POINTWISE_RELU_FWD);
    case Activation::kLeakyRelu:
      return with(make(CUDNN_POINTWISE_RELU_FWD), CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP_SLOPE, a);
    case Activation::kClip:
      return with(with(make(CUDNN_POINTWISE_RELU_FWD), CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP, a),
                  CUDNN_ATTR_POINTWISE_RELU_UPPER_CLIP, b);
    case Activation::kSigmoid:
      return make(CUDNN_POINTWISE_SIGMOID_FWD);
    case Activation::kTanh:
      return make(CUDNN_POINTWISE_TANH_FWD);
    case Activation::kElu:
      return with(make(CUDNN_POINTWISE_ELU_FWD), CUDNN_ATTR_POINTWISE_ELU_ALPHA, a);
    case Activation::kSwish:
      return with(make(CUDNN_POINTWISE_SWISH_FWD), CUDNN_ATTR_POINTWISE_SWISH_BETA, a);
    case Activation::kGelu:
      return make(CUDNN_POINTWISE_GELU_FWD);
    case Activation::kGeluTanh:
      return make(CUDNN_POINTWISE_GELU_APPROX_TANH_FWD);
    case Activation::kSoftplus:
      return make(CUDNN_POINTWISE_SOFTPLUS_FWD);
    default:
      fail(ErrorKind::kNotImplemented, "cuDNN has no such activation");
  }
}

template <typename T>
std::vector<T> window_values(const Window& w, const std::array<T, kMaxSpatial>& values) {
  return {values.begin(), values.begin() + w.rank};
}

}  // namespace

bool cudnn_has_activation(const ConvProblem& p) {
  switch (p.activation) {
    case Activation::kNone:
    case Activation::kRelu:
    case Activation::kLeakyRelu:
      return true;
    case Activation::kClip:  // open ends would overflow in the library's own arithmetic
      return std::abs(p.activation_a) < 1e30f && std::abs(p.activation_b) < 1e30f;
    case Activation::kHardSigmoid:
    case Activation::kHardSwish:
    case Activation::kMish:
      return false;
    default:  // the library's transcendental functions are approximations, good for 16 bits only
      return p.dtype == DType::kF16 || p.dtype == DType::kBF16;
  }
}

ConvGraph::ConvGraph(cudnnHandle_t handle, const ConvProblem& problem, ConvFusion fusion)
    : handle_(handle), problem_(problem) {
  const ConvProblem& p = problem_;
  const Window& w = p.window;
  const auto dims = [&](int64_t outer, int64_t channels, const Spatial& spatial) {
    std::vector<int64_t> d{outer, channels};
    d.insert(d.end(), spatial.begin(), spatial.begin() + w.rank);
    return d;
  };
  const std::vector<int64_t> y_dims = dims(p.n, p.k, w.out);
  // The steps after the convolution; the last one writes Y, the others virtual tensors that never reach memory.
  enum class Step { kBias, kResidual, kActivation };
  std::vector<Step> steps;
  if (fusion != ConvFusion::kNone) {
    if (p.z && fusion == ConvFusion::kResidualThenBias) steps.push_back(Step::kResidual);
    if (p.bias) steps.push_back(Step::kBias);
    if (p.z && fusion == ConvFusion::kBiasThenResidual) steps.push_back(Step::kResidual);
    if (p.activation != Activation::kNone) steps.push_back(Step::kActivation);
  }
  const auto result_of = [&](size_t step) -> const CudnnDescriptor& {
    return step == steps.size() ? tensor(kY, y_dims) : virtual_tensor(kVirtual + static_cast<int64_t>(step));
  };
  const CudnnDescriptor& x = tensor(kX, dims(p.n, p.c, w.in));
  const CudnnDescriptor& weights =
      tensor(kW, p.transposed ? dims(p.c, p.k / p.groups, w.kernel) : dims(p.k, p.c / p.groups, w.kernel));
  const CudnnDescriptor* value = &result_of(0);
  if (p.transposed)
    add_gradient(x, weights, *value);
  else
    add_convolution(x, weights, *value);
  for (size_t i = 0; i < steps.size(); ++i) {
    const CudnnDescriptor* result = &result_of(i + 1);
    if (steps[i] == Step::kActivation) {
      add_pointwise(activation_descriptor(p), *value, nullptr, *result);
    } else {
      const CudnnDescriptor& operand =
          steps[i] == Step::kBias ? tensor(kBias, dims(1, p.k, {1, 1, 1})) : tensor(kZ, y_dims);
      add_pointwise(pointwise(CUDNN_POINTWISE_ADD, p.dtype), *value, &operand, *result);
    }
    value = result;
  }

  graph_ = CudnnDescriptor(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  graph_.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, static_cast<int64_t>(operations_.size()),
             operations_.data());
  graph_.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, handle_);
  graph_.finalize();
}

const CudnnDescriptor& ConvGraph::keep(CudnnDescriptor d) {
  d.finalize();
  parts_.push_back(std::move(d));
  return parts_.back();
}

const CudnnDescriptor& ConvGraph::tensor(int64_t uid, const std::vector<int64_t>& dims) {
  CudnnDescriptor d(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  d.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, data_type(problem_.dtype));
  d.set(CUDNN_ATTR_TENSOR_DIMENSIONS, dims);
  d.set(CUDNN_ATTR_TENSOR_STRIDES, strides_of(dims, problem_.channels_last));
  d.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, uid);
  d.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, static_cast<int64_t>(problem_.alignment));
  return keep(std::move(d));
}

// An intermediate of Y's shape, in the type that the graph computes in.
const CudnnDescriptor& ConvGraph::virtual_tensor(int64_t uid) {
  const Window& w = problem_.window;
  std::vector<int64_t> dims{problem_.n, problem_.k};
  dims.insert(dims.end(), w.out.begin(), w.out.begin() + w.rank);
  CudnnDescriptor d(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  d.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, compute_type(problem_.dtype));
  d.set(CUDNN_ATTR_TENSOR_DIMENSIONS, dims);
  d.set(CUDNN_ATTR_TENSOR_STRIDES, strides_of(dims, problem_.channels_last));
  d.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, uid);
  d.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, int64_t{16});
  d.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, true);
  return keep(std::move(d));
}

CudnnDescriptor ConvGraph::convolution() const {
  const Window& window = problem_.window;
  CudnnDescriptor conv(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  conv.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, static_cast<int64_t>(window.rank));
  conv.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, compute_type(problem_.dtype));
  conv.set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, CUDNN_CROSS_CORRELATION);
  conv.set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, window_values(window, window.pad_begin));
  conv.set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, window_values(window, window.pad_end));
  conv.set(CUDNN_ATTR_CONVOLUTION_DILATIONS, window_values(window, window.dilation));
  conv.set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, window_values(window, window.stride));
  return conv;
}

void ConvGraph::add_convolution(const CudnnDescriptor& x, const CudnnDescriptor& w, const CudnnDescriptor& y) {
  CudnnDescriptor op(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR);
  op.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, keep(convolution()));
  op.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, x);
  op.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, w);
  op.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, y);
  if (problem_.dtype == DType::kF64) {
    op.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_TYPE_DOUBLE, 1.0);
    op.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, CUDNN_TYPE_DOUBLE, 0.0);
  } else {
    op.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_TYPE_FLOAT, 1.f);
    op.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, CUDNN_TYPE_FLOAT, 0.f);
  }
  operations_.push_back(keep(std::move(op)).raw());
}

// A transposed convolution is the gradient of a convolution by its input: X is what came out of that one, Y what went
// in.
void ConvGraph::add_gradient(const CudnnDescriptor& x, const CudnnDescriptor& w, const CudnnDescriptor& y) {
  CudnnDescriptor op(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR);
  op.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, keep(convolution()));
  op.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, x);
  op.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, w);
  op.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, y);
  if (problem_.dtype == DType::kF64) {
    op.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, CUDNN_TYPE_DOUBLE, 1.0);
    op.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA, CUDNN_TYPE_DOUBLE, 0.0);
  } else {
    op.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, CUDNN_TYPE_FLOAT, 1.f);
    op.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA, CUDNN_TYPE_FLOAT, 0.f);
  }
  operations_.push_back(keep(std::move(op)).raw());
}

void ConvGraph::add_pointwise(CudnnDescriptor mode, const CudnnDescriptor& x, const CudnnDescriptor* b,
                              const CudnnDescriptor& y) {
  CudnnDescriptor op(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  op.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, keep(std::move(mode)));
  op.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
  if (b) op.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, *b);
  op.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
  operations_.push_back(keep(std::move(op)).raw());
}

std::vector<CudnnDescriptor> ConvGraph::configurations(cudnnBackendHeurMode_t mode) const {
  std::vector<CudnnDescriptor> results;
  try {
    CudnnDescriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph_);
    heuristics.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, mode);
    heuristics.finalize();
    const int64_t offered = heuristics.get(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, nullptr);
    std::vector<cudnnBackendDescriptor_t> raw;
    for (int64_t i = 0; i < offered; ++i) {
      results.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
      raw.push_back(results.back().raw());
    }
    const int64_t filled =
        heuristics.get(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, offered, raw.data());
    results.resize(static_cast<size_t>(std::min(filled, offered)));
  } catch (const Error& e) {
    if (e.kind() == ErrorKind::kOutOfMemory) throw;
    results.clear();  // no heuristic for this pattern
  }
  return results;
}

bool ConvGraph::acceptable(const CudnnDescriptor& configuration) const {
  CudnnDescriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t raw = engine.raw();
  configuration.get(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &raw);
  std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> notes{};
  const int64_t capacity = static_cast<int64_t>(notes.size());
  const int64_t count = std::min(
      capacity, engine.get(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, capacity, notes.data()));
  const bool strict_f32 = problem_.dtype == DType::kF32 && !problem_.tf32;
  return std::none_of(notes.begin(), notes.begin() + count, [&](cudnnBackendNumericalNote_t note) {
    switch (note) {
      case CUDNN_NUMERICAL_NOTE_TENSOR_CORE:  // for f32 this is TF32
      case CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS:
        return strict_f32;
      case CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION:
      case CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC:
      case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13:
        return true;
      default:
        return false;
    }
  });
}

std::optional<ConvPlan> ConvGraph::plan(CudnnDescriptor configuration) const {
  try {
    if (!acceptable(configuration)) return std::nullopt;
    CudnnDescriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, handle_);
    plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration);
    plan.finalize();
    return ConvPlan(std::move(configuration), std::move(plan));
  } catch (const Error& e) {
    if (e.kind() == ErrorKind::kOutOfMemory) throw;
    return std::nullopt;  // a configuration that does not fit this device or problem after all
  }
}

ConvPlan::ConvPlan(CudnnDescriptor configuration, CudnnDescriptor plan)
    : configuration_(std::move(configuration)), plan_(std::move(plan)) {
  int64_t workspace = 0;
  plan_.get(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &workspace);
  if (workspace < 0 || static_cast<size_t>(workspace) > kMaxWorkspace)
    fail(ErrorKind::kNotImplemented, "the plan wants ", workspace, " bytes of workspace, at most ", kMaxWorkspace,
         " are granted");
  workspace_ = static_cast<size_t>(workspace);
}

std::optional<ConvPlan> ConvPlan::restore(cudnnHandle_t handle, const std::string& serialized) {
  try {
    CudnnDescriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    plan.set(CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, static_cast<int64_t>(serialized.size()),
             serialized.data());
    plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, handle);
    plan.finalize();
    return ConvPlan(CudnnDescriptor(), std::move(plan));
  } catch (const Error& e) {
    if (e.kind() == ErrorKind::kOutOfMemory) throw;
    return std::nullopt;
  }
}

std::string ConvPlan::serialized() const {
  constexpr auto kAttribute = CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION;
  try {
    std::string text(static_cast<size_t>(plan_.get(kAttribute, CUDNN_TYPE_CHAR, 0, nullptr)), '\0');
    plan_.get(kAttribute, CUDNN_TYPE_CHAR, static_cast<int64_t>(text.size()), text.data());
    return text;
  } catch (const Error&) {
    return "";
  }
}

void ConvPlan::execute(cudnnHandle_t handle, const ConvProblem& p, ConvFusion fusion, const ConvOperands& o,
                       void* workspace, cudaStream_t stream) const {
  std::vector<int64_t> uids{kX, kW, kY};
  std::vector<const void*> pointers{o.x, o.w, o.y};
  if (fusion != ConvFusion::kNone) {
    if (p.bias) uids.push_back(kBias), pointers.push_back(o.bias);
    if (p.z) uids.push_back(kZ), pointers.push_back(o.z);
  }
  CudnnDescriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, uids);
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, static_cast<int64_t>(pointers.size()),
           pointers.data());
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace);
  pack.finalize();
  CUVIL_CUDNN(libs::cudnn().set_stream(handle, stream));
  CUVIL_CUDNN(libs::cudnn().execute(handle, plan_.raw(), pack.raw()));
}

}  // namespace cuvil
