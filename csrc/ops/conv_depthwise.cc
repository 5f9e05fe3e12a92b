// A depthwise convolution by our own kernel, which ends with any bias, residual and activation.
#include "kernels/depthwise_conv.cuh"
#include "ops/conv_candidate.h"

namespace cuvil {
namespace {

constexpr int64_t kIndexLimit = (int64_t{1} << 31) - 1;
// Of the grid's second dimension: channel tiles of 8 where vectors do not fit.
constexpr int64_t kMaxChannels = 65535 * 8;

bool depthwise(const ConvProblem& p) {
  return !p.transposed && p.window.rank == 2 && p.groups == p.c && p.k == p.c && p.c > 0 && p.c <= kMaxChannels &&
         p.dtype != DType::kF64 && p.window.kernel_size() <= kMaxDepthwiseKernel && p.x_count() <= kIndexLimit &&
         p.y_count() <= kIndexLimit;
}

class DepthwiseConv : public ConvCandidate {
 public:
  explicit DepthwiseConv(const ConvProblem& problem) : ConvCandidate("depthwise", problem) {}

  size_t workspace() const override { return 0; }

  void launch(const ConvOperands& o, void*, cudaStream_t stream) const override {
    const ConvProblem& p = problem();
    DepthwiseConvParams d;
    d.x = o.x, d.w = o.w, d.y = o.y;
    d.bias = p.bias ? o.bias : nullptr;
    d.z = p.z ? o.z : nullptr;
    d.dtype = p.dtype;
    d.channels_last = p.channels_last;
    d.n = p.n, d.c = p.c;
    for (size_t i = 0; i < 2; ++i) {
      d.in[i] = static_cast<int>(p.window.in[i]), d.out[i] = static_cast<int>(p.window.out[i]);
      d.kernel[i] = static_cast<int>(p.window.kernel[i]), d.stride[i] = static_cast<int>(p.window.stride[i]);
      d.dilation[i] = static_cast<int>(p.window.dilation[i]), d.pad[i] = static_cast<int>(p.window.pad_begin[i]);
    }
    d.activation = p.activation_params();
    CUVIL_CUDA(launch_depthwise_conv(d, stream));
  }
};

}  // namespace

void add_depthwise_candidate(const ConvProblem& problem, const ConvFilter& filter, ConvCandidates& out) {
  if (depthwise(problem) && filter.wants("depthwise") && !filter.full(out))
    out.push_back(std::make_unique<DepthwiseConv>(problem));
}

}  // namespace cuvil
