// Transpose, DepthToSpace, SpaceToDepth: permutations of dimensions.
#include "ops/copy_view.h"
#include "ops/params.h"

namespace cuvil {
namespace {

// Output dimension i is the dimension perm[i] of x, seen as `shape`.
plan::View permute(const Dims& shape, const std::vector<int64_t>& perm) {
  const Dims strides = plan::contiguous_strides(shape);
  plan::View view;
  for (int64_t axis : perm) view.push_back(shape[static_cast<int>(axis)], strides[static_cast<int>(axis)]);
  return view;
}

class Transpose : public Op {
 public:
  explicit Transpose(const NodeView& node) { given_ = node.find("perm", &perm_); }

  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0);
    const int rank = x.shape.rank();
    std::vector<int64_t> perm = perm_;
    if (!given_)
      for (int i = rank - 1; i >= 0; --i) perm.push_back(i);
    require(static_cast<int>(perm.size()) == rank, "Transpose: perm has ", perm.size(), " entries for rank ", rank);
    Dims shape;
    bool seen[kMaxRank] = {};
    for (int64_t axis : perm) {
      require(axis >= 0 && axis < rank && !seen[axis], "Transpose: perm is no permutation of 0..", rank - 1);
      seen[axis] = true;
      shape.push_back(x.shape[static_cast<int>(axis)]);
    }
    const Tensor y = ctx.output(0, shape);
    copy_view(ctx, x.data, y.data, x.dtype, permute(x.shape, perm));
  }

 private:
  std::vector<int64_t> perm_;
  bool given_;
};

class DepthToSpace : public Op {
 public:
  explicit DepthToSpace(const NodeView& node)
      : block_(node.get<int64_t>("blocksize", 0)), column_first_(node.get<std::string>("mode", "DCR") == "CRD") {
    require(block_ > 0, "DepthToSpace: blocksize is ", block_);
  }

  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0);
    require(x.shape.rank() == 4, "DepthToSpace: rank ", x.shape.rank(), "; 4 is required");
    const int64_t n = x.shape[0], c = x.shape[1], h = x.shape[2], w = x.shape[3], b = block_;
    require(c % (b * b) == 0, "DepthToSpace: ", c, " channels do not divide by blocksize squared, ", b * b);
    const Tensor y = ctx.output(0, Dims{n, c / (b * b), h * b, w * b});
    copy_view(ctx, x.data, y.data, x.dtype,
              column_first_ ? permute(Dims{n, c / (b * b), b, b, h, w}, {0, 1, 4, 2, 5, 3})
                            : permute(Dims{n, b, b, c / (b * b), h, w}, {0, 3, 4, 1, 5, 2}));
  }

 private:
  int64_t block_;
  bool column_first_;
};

class SpaceToDepth : public Op {
 public:
  explicit SpaceToDepth(const NodeView& node)  // `mode` came with version 28
      : block_(node.get<int64_t>("blocksize", 0)), column_first_(node.get<std::string>("mode", "DCR") == "CRD") {
    require(block_ > 0, "SpaceToDepth: blocksize is ", block_);
  }

  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0);
    require(x.shape.rank() == 4, "SpaceToDepth: rank ", x.shape.rank(), "; 4 is required");
    const int64_t n = x.shape[0], c = x.shape[1], h = x.shape[2], w = x.shape[3], b = block_;
    require(h % b == 0 && w % b == 0, "SpaceToDepth: ", h, "x", w, " does not divide by blocksize ", b);
    const Tensor y = ctx.output(0, Dims{n, c * b * b, h / b, w / b});
    const Dims blocks{n, c, h / b, b, w / b, b};
    copy_view(ctx, x.data, y.data, x.dtype,
              column_first_ ? permute(blocks, {0, 1, 3, 5, 2, 4}) : permute(blocks, {0, 3, 5, 1, 2, 4}));
  }

 private:
  int64_t block_;
  bool column_first_;
};

template <typename T>
OpEntry entry(const char* type) {
  return {.type = type, .supports = supports_any_type, .create = make_op<T>};
}

const Register transpose{entry<Transpose>("Transpose")};
const Register depth_to_space{entry<DepthToSpace>("DepthToSpace")};
const Register space_to_depth{entry<SpaceToDepth>("SpaceToDepth")};

}  // namespace
}  // namespace cuvil
