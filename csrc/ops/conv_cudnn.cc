// Convolution candidates from cuDNN: fused graphs, and plain convolutions followed by our epilogue kernel; each also
// on an input padded explicitly, in space (asymmetric padding) or in channels (images of three).
#include <algorithm>

#include "kernels/conv_layout.cuh"
#include "kernels/epilogue.cuh"
#include "ops/conv_candidate.h"
#include "ops/conv_graph.h"

namespace cuvil {
namespace {

// Heuristic results tried for each graph. The first few hold the best nearly always, and a plan that cuDNN compiles at
// run time costs some 100 ms: the first run of a network of 50 shapes must not take minutes. Fewer where another way
// (a product, another layout of the operands) competes anyway.
constexpr int kPlans = 4;
constexpr int kPlansBesideOthers = 2;
constexpr int kAllPlans = 64;

bool is_half(DType t) { return t == DType::kF16 || t == DType::kBF16; }

size_t round_up(size_t bytes) { return (bytes + 255) / 256 * 256; }

// What happens to the operands before cuDNN sees them, or to its result after.
enum class Prepare { kNothing, kPadSpace, kPadChannels, kCropSpace };

// The problem that cuDNN solves then. `channels`: what channels are padded to.
ConvProblem prepared(const ConvProblem& p, Prepare prepare, int64_t channels) {
  ConvProblem q = p;
  if (prepare == Prepare::kPadChannels) q.c = channels;
  if (prepare != Prepare::kPadSpace && prepare != Prepare::kCropSpace) return q;
  for (size_t i = 0; i < static_cast<size_t>(p.window.rank); ++i) {
    (prepare == Prepare::kPadSpace ? q.window.in : q.window.out)[i] += p.window.pad_begin[i] + p.window.pad_end[i];
    q.window.pad_begin[i] = q.window.pad_end[i] = 0;
  }
  return q;
}

struct Way {
  std::string name;
  Prepare prepare = Prepare::kNothing;
  ConvProblem planned;
  ConvFusion fusion = ConvFusion::kNone;
};

class CudnnConv : public ConvCandidate {
 public:
  CudnnConv(std::string id, const ConvProblem& problem, const Way& way, cudnnHandle_t handle, ConvPlan plan)
      : ConvCandidate(std::move(id), problem), way_(way), handle_(handle), plan_(std::move(plan)) {}

  std::string serialized() const override { return plan_.serialized(); }
  size_t workspace() const override { return round_up(plan_.workspace()) + round_up(extra_bytes()) + w_bytes(); }

  void launch(const ConvOperands& operands, void* workspace, cudaStream_t stream) const override {
    ConvOperands o = operands;
    char* const extra = static_cast<char*>(workspace) + round_up(plan_.workspace());
    if (way_.prepare == Prepare::kPadSpace) {
      pad_space(operands.x, extra, stream);
      o.x = extra;
    } else if (way_.prepare == Prepare::kPadChannels) {
      char* const w = extra + round_up(extra_bytes());
      pad_channels(operands, extra, w, stream);
      o.x = extra;
      o.w = w;
    } else if (way_.prepare == Prepare::kCropSpace) {
      o.y = extra;
    }
    plan_.execute(handle_, way_.planned, way_.fusion, o, workspace, stream);
    if (way_.prepare == Prepare::kCropSpace) crop_space(extra, operands.y, stream);
    if (way_.fusion == ConvFusion::kNone) launch_conv_epilogue(problem(), operands, true, true, true, stream);
  }

 private:
  int64_t filter_rows() const { return problem().k * problem().window.kernel_size(); }

  // Of the padded X, or of Y before it is cropped.
  size_t extra_bytes() const {
    if (way_.prepare == Prepare::kNothing) return 0;
    const int64_t count = way_.prepare == Prepare::kCropSpace ? way_.planned.y_count() : way_.planned.x_count();
    return static_cast<size_t>(count) * size_of(way_.planned.dtype);
  }
  size_t w_bytes() const {
    if (way_.prepare != Prepare::kPadChannels) return 0;
    return static_cast<size_t>(filter_rows() * way_.planned.c) * size_of(way_.planned.dtype);
  }

  void pad_space(const void* x, void* padded, cudaStream_t stream) const {
    const ConvProblem& p = problem();
    SpatialPadParams s;
    s.in = x;
    s.out = padded;
    s.element = size_of(p.dtype);
    s.outer = p.channels_last ? p.n : p.n * p.c;
    s.vector = p.channels_last ? p.c : 1;
    for (size_t i = 0; i < static_cast<size_t>(p.window.rank); ++i) {
      s.in_dims[i] = p.window.in[i];
      s.begin[i] = p.window.pad_begin[i];
      s.out_dims[i] = way_.planned.window.in[i];
    }
    CUVIL_CUDA(launch_spatial_pad(s, stream));
  }

  // Padding by a negative number of elements: the input's first ones are skipped.
  void crop_space(const void* y, void* cropped, cudaStream_t stream) const {
    const ConvProblem& p = problem();
    SpatialPadParams s;
    s.in = y;
    s.out = cropped;
    s.element = size_of(p.dtype);
    s.outer = p.channels_last ? p.n : p.n * p.k;
    s.vector = p.channels_last ? p.k : 1;
    for (size_t i = 0; i < static_cast<size_t>(p.window.rank); ++i) {
      s.in_dims[i] = way_.planned.window.out[i];
      s.begin[i] = -p.window.pad_begin[i];
      s.out_dims[i] = p.window.out[i];
    }
    CUVIL_CUDA(launch_spatial_pad(s, stream));
  }

  void pad_channels(const ConvOperands& o, void* x, void* w, cudaStream_t stream) const {
    ChannelPadParams c;
    c.parts[0] = {o.x, x, problem().n * problem().window.in_size()};
    c.parts[1] = {o.w, w, filter_rows()};
    c.in_channels = static_cast<int>(problem().c);
    c.out_channels = static_cast<int>(way_.planned.c);
    CUVIL_CUDA(launch_channel_pad(c, stream));
  }

  Way way_;
  cudnnHandle_t handle_;
  ConvPlan plan_;
};

// Up to `most` plans of one graph.
int add_graph(cudnnHandle_t handle, const ConvProblem& p, const Way& way, int most, const ConvFilter& filter,
              ConvCandidates& out) {
  int added = 0;
  const std::string start = concat("cudnn:", way.name, ':');
  if (!filter.reaches(start)) return added;
  // The rest of the id names the heuristic's result, unless it begins with another way's further parts.
  if (!filter.stored.empty() && filter.id.find(':', start.size()) == std::string::npos) {
    if (std::optional<ConvPlan> plan = ConvPlan::restore(handle, filter.stored)) {
      out.push_back(std::make_unique<CudnnConv>(filter.id, p, way, handle, std::move(*plan)));
      return 1;
    }
  }
  try {
    const ConvGraph graph(handle, way.planned, way.fusion);
    // The fallback list is the slow but general one: asked only when the ranked one yields nothing.
    for (const auto& [mode, mode_name] :
         {std::pair{CUDNN_HEUR_MODE_A, "a"}, std::pair{CUDNN_HEUR_MODE_FALLBACK, "f"}}) {
      std::vector<CudnnDescriptor> configurations = graph.configurations(mode);
      for (size_t i = 0; i < configurations.size() && added < most && !filter.full(out); ++i) {
        std::string id = concat(start, mode_name, i);
        if (!filter.wants(id)) continue;
        std::optional<ConvPlan> plan = graph.plan(std::move(configurations[i]));
        if (!plan) continue;
        out.push_back(std::make_unique<CudnnConv>(std::move(id), p, way, handle, std::move(*plan)));
        ++added;
      }
      if (added) break;
    }
  } catch (const Error& e) {
    // A graph that cuDNN refuses as a whole offers nothing; running out of memory is not an answer about the graph.
    if (e.kind() == ErrorKind::kOutOfMemory) throw;
  }
  return added;
}

// Channels-first tensors of one pixel have the strides of channels-last ones. cuDNN offers fused kernels then that mix
// both up: zeros for [3, 8, 5, 5] with a filter of [8, 8, 5, 5] in float16 (cuDNN 9, H200). Its plain ones are right.
bool layout_is_clear(const ConvProblem& p) {
  return p.channels_last || (p.window.in_size() != 1 && p.window.out_size() != 1);
}

void add_graphs(cudnnHandle_t handle, const ConvProblem& p, Prepare prepare, int64_t channels, const ConvFilter& filter,
                ConvCandidates& out) {
  const std::string suffix = prepare == Prepare::kPadSpace      ? ":pad"
                             : prepare == Prepare::kCropSpace   ? ":crop"
                             : prepare == Prepare::kPadChannels ? concat(":c", channels)
                                                                : "";
  const auto add = [&](ConvFusion fusion, const char* name) {
    const Way way{name + suffix, prepare, prepared(p, prepare, channels), fusion};
    const int few = out.empty() && prepare == Prepare::kNothing ? kPlans : kPlansBesideOthers;
    const int most = filter.all_plans ? kAllPlans : few;
    return add_graph(handle, p, way, most, filter, out);
  };
  const bool epilogue = !p.transposed && (p.bias || p.z || p.activation != Activation::kNone);
  int fused = 0;
  if (epilogue && cudnn_has_activation(p) && layout_is_clear(p)) {
    fused = add(ConvFusion::kResidualThenBias, "rb");
    if (fused == 0 && p.bias && p.z) fused = add(ConvFusion::kBiasThenResidual, "br");
  }
  // In 16 bits the fused kernels are the plain ones with an epilogue: nothing to gain. In fp32 some algorithms
  // (Winograd) exist unfused only, and may win although the epilogue takes a second pass.
  if (fused == 0 || !is_half(p.dtype)) add(ConvFusion::kNone, "plain");
}

}  // namespace

void launch_conv_epilogue(const ConvProblem& p, const ConvOperands& o, bool bias, bool z, bool activation,
                          cudaStream_t stream) {
  EpilogueParams e;
  e.y = o.y;
  e.bias = bias && p.bias ? o.bias : nullptr;
  e.z = z && p.z ? o.z : nullptr;
  e.dtype = p.dtype;
  e.count = p.y_count();
  e.channels = p.k;
  e.inner = p.channels_last ? 1 : p.window.out_size();
  if (activation) e.activation = p.activation_params();
  if (e.bias || e.z || e.activation.kind != Activation::kNone) CUVIL_CUDA(launch_epilogue(e, stream));
}

void add_cudnn_candidates(cudnnHandle_t handle, const ConvProblem& problem, const ConvFilter& filter,
                          ConvCandidates& out) {
  add_graphs(handle, problem, Prepare::kNothing, problem.c, filter, out);
  const Prepare uneven = problem.transposed ? Prepare::kCropSpace : Prepare::kPadSpace;
  if (!problem.window.symmetric()) add_graphs(handle, problem, uneven, problem.c, filter, out);
  if (problem.transposed) return;
  // Tensor cores read channels in vectors of 8 (4 in kernels made for images): where there are fewer, zeros fill up.
  if (!problem.channels_last || !is_half(problem.dtype) || problem.groups != 1 || problem.c % 8 == 0 || problem.c == 0)
    return;
  if (problem.c < 4) add_graphs(handle, problem, Prepare::kPadChannels, 4, filter, out);
  add_graphs(handle, problem, Prepare::kPadChannels, (problem.c + 7) / 8 * 8, filter, out);
}

}  // namespace cuvil
