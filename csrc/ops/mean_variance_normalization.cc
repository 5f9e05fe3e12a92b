// MeanVarianceNormalization, opset 9 and later.
#include "kernels/mean_variance.cuh"
#include "ops/copy_view.h"
#include "plan/shapes.h"

namespace cuvil {
namespace {

// Below this width the elements of a segment are too few to be read together.
constexpr int64_t kMinWidth = 16;

std::string supports(const NodeView& node) {
  const DType t = node.input_dtype(0);
  if (!is_float(t)) return concat("input 0 is ", name_of(t), "; f32, f16, bf16 or f64 is required");
  return "";
}

// The dimensions of x above 1, neighbours of one fate merged: runs[i] is normalized over when `normalized` of it.
struct Runs {
  std::vector<int64_t> extent;
  std::vector<bool> normalized;

  Runs(const Dims& x, const std::vector<int>& axes) {
    std::vector<bool> over(static_cast<size_t>(x.rank()));
    for (int a : axes) over[static_cast<size_t>(a)] = true;
    for (int d = 0; d < x.rank(); ++d) {
      const bool fate = over[static_cast<size_t>(d)];
      if (x[d] == 1) continue;
      if (!normalized.empty() && normalized.back() == fate) {
        extent.back() *= x[d];
      } else {
        extent.push_back(x[d]);
        normalized.push_back(fate);
      }
    }
  }
};

class MeanVarianceNormalization : public Op {
 public:
  explicit MeanVarianceNormalization(const NodeView& node) {
    if (!node.find("axes", &axes_)) axes_ = {0, 2, 3};
  }

  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0);
    const Tensor y = ctx.output(0, x.shape);
    if (y.size() == 0) return;
    const Runs runs(x.shape, plan::normalize_axes(axes_, x.shape.rank()));
    const std::vector<int64_t>& e = runs.extent;
    const std::vector<bool>& over = runs.normalized;
    MeanVarianceParams p{.x = x.data, .y = y.data, .dtype = x.dtype, .rows = 1, .width = 1};
    if (over.empty()) {
      // one element
    } else if (over == std::vector<bool>{true}) {
      p.width = e[0];
    } else if (over == std::vector<bool>{false}) {
      p.rows = e[0];
    } else if (over == std::vector<bool>{false, true}) {
      p.rows = e[0], p.width = e[1];
    } else if (over == std::vector<bool>{true, false, true} && e[2] >= kMinWidth) {
      p.segments = e[0], p.rows = e[1], p.width = e[2];
    } else {
      return through_transpose(ctx, x, y, runs);
    }
    CUVIL_CUDA(launch_mean_variance(p, ctx.stream()));
  }

 private:
  // Rows are gathered in scratch memory, normalized there, and put back.
  static void through_transpose(OpContext& ctx, const Tensor& x, const Tensor& y, const Runs& runs) {
    const Dims shape(runs.extent.data(), runs.extent.size());
    const Dims strides = plan::contiguous_strides(shape);
    std::vector<int> order;
    MeanVarianceParams p{.dtype = x.dtype, .rows = 1, .width = 1};
    for (const bool over : {false, true}) {
      for (int d = 0; d < shape.rank(); ++d) {
        if (runs.normalized[static_cast<size_t>(d)] != over) continue;
        order.push_back(d);
        (over ? p.width : p.rows) *= shape[d];
      }
    }
    plan::View gather, back;
    Dims moved;
    for (int d : order) {
      gather.push_back(shape[d], strides[d]);
      moved.push_back(shape[d]);
    }
    const Dims moved_strides = plan::contiguous_strides(moved);
    Dims stride_of = shape;
    for (int i = 0; i < moved.rank(); ++i) stride_of[order[static_cast<size_t>(i)]] = moved_strides[i];
    for (int d = 0; d < shape.rank(); ++d) back.push_back(shape[d], stride_of[d]);
    p.y = ctx.scratch(x.bytes());
    p.x = p.y;
    copy_view(ctx, x.data, p.y, x.dtype, gather);
    CUVIL_CUDA(launch_mean_variance(p, ctx.stream()));
    copy_view(ctx, p.y, y.data, x.dtype, back);
  }

  std::vector<int64_t> axes_;
};

const Register mean_variance_normalization{{.type = "MeanVarianceNormalization",
                                            .since = 9,
                                            .supports = supports,
                                            .create = make_op<MeanVarianceNormalization>}};

}  // namespace
}  // namespace cuvil
