// GridSample, opset 16 and later, and com.microsoft GridSample (the same as opset 16).
#include "kernels/grid_sample.cuh"

#include "ops/op.h"

namespace cuvil {
namespace {

// Names before and since opset 20.
bool parse_mode(const std::string& name, GridSampleMode* mode) {
  if (name == "nearest") return *mode = GridSampleMode::kNearest, true;
  if (name == "bilinear" || name == "linear") return *mode = GridSampleMode::kLinear, true;
  if (name == "bicubic" || name == "cubic") return *mode = GridSampleMode::kCubic, true;
  return false;
}

bool parse_padding(const std::string& name, GridSamplePadding* padding) {
  if (name == "zeros") return *padding = GridSamplePadding::kZeros, true;
  if (name == "border") return *padding = GridSamplePadding::kBorder, true;
  if (name == "reflection") return *padding = GridSamplePadding::kReflection, true;
  return false;
}

std::string supports(const NodeView& node) {
  const DType t = node.input_dtype(0), grid = node.input_dtype(1);
  if (!is_float(t)) return concat("input 0 is ", name_of(t), "; f32, f16, bf16 or f64 is required");
  if (grid != t && grid != DType::kF32)
    return concat("input 1 is ", name_of(grid), "; f32 or the type of input 0, ", name_of(t), ", is required");
  const std::string mode = node.get<std::string>("mode", "linear");
  const std::string padding = node.get<std::string>("padding_mode", "zeros");
  GridSampleParams p;
  if (!parse_mode(mode, &p.mode)) return concat("mode is '", mode, "'");
  if (!parse_padding(padding, &p.padding)) return concat("padding_mode is '", padding, "'");
  if (const auto x = node.input_shape(0)) {
    if (x->rank() != 4 && x->rank() != 5) return concat("X has rank ", x->rank(), "; 4 or 5 is required");
    if (p.mode == GridSampleMode::kCubic && x->rank() != 4) return concat("mode ", mode, " needs X of rank 4");
  }
  return "";
}

class GridSample : public Op {
 public:
  explicit GridSample(const NodeView& node) {
    parse_mode(node.get<std::string>("mode", "linear"), &p_.mode);
    parse_padding(node.get<std::string>("padding_mode", "zeros"), &p_.padding);
    p_.align_corners = node.get<int64_t>("align_corners", 0) != 0;
  }

  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0), grid = ctx.input(1);
    const int rank = x.shape.rank(), spatial = rank - 2;
    require(rank == 4 || (rank == 5 && p_.mode != GridSampleMode::kCubic), "X has shape ", x.shape.to_string(),
            "; rank 4 is required, or 5 in modes linear and nearest");
    require(grid.shape.rank() == rank && grid.shape[0] == x.shape[0] && grid.shape[rank - 1] == spatial,
            "the grid has shape ", grid.shape.to_string(), "; [", x.shape[0], ", ..., ", spatial, "] of rank ", rank,
            " is required");
    Dims out{x.shape[0], x.shape[1]};
    for (int i = 1; i <= spatial; ++i) out.push_back(grid.shape[i]);
    const Tensor y = ctx.output(0, out);
    if (y.size() == 0) return;
    const int64_t pixels = x.shape.product(2, rank);
    require(pixels > 0 && pixels <= INT_MAX / 2, "X of shape ", x.shape.to_string(), " has ", pixels,
            " pixels a channel; 1 to 2^30 - 1 are served");
    GridSampleParams p = p_;
    p.x = x.data, p.grid = grid.data, p.y = y.data;
    p.dtype = x.dtype, p.grid_dtype = grid.dtype;
    p.spatial = spatial;
    p.n = x.shape[0], p.c = x.shape[1];
    p.positions = out.product(2, rank);
    for (int i = 0; i < spatial; ++i) p.in[3 - spatial + i] = static_cast<int>(x.shape[2 + i]);
    CUVIL_CUDA(launch_grid_sample(p, ctx.stream()));
  }

 private:
  GridSampleParams p_;
};

OpEntry entry(const char* domain, int since) {
  return {.domain = domain, .type = "GridSample", .since = since, .supports = supports, .create = make_op<GridSample>};
}

const Register grid_sample{entry("", 16)};
const Register contrib_grid_sample{entry("com.microsoft", 1)};

}  // namespace
}  // namespace cuvil
