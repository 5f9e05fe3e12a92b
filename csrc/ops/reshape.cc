// Reshape, Flatten, Squeeze, Unsqueeze, Identity: the elements stay where they are, only the shape changes.
#include "ops/params.h"
#include "plan/shapes.h"

namespace cuvil {
namespace {

// Output 0 is input 0 under the shape that `Derived::shape` returns.
template <typename Derived>
class SameElements : public Op {
 public:
  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0);
    copy_elements(ctx, x, ctx.output(0, static_cast<Derived*>(this)->shape(ctx, x.shape)));
  }
};

class Reshape : public SameElements<Reshape> {
 public:
  explicit Reshape(const NodeView& node)
      : shape_(node, "shape", 1), allow_zero_(node.get<int64_t>("allowzero", 0) != 0) {}
  Dims shape(OpContext& ctx, const Dims& x) const { return plan::reshape(x, shape_.get(ctx), allow_zero_); }

 private:
  IntsParam shape_;
  bool allow_zero_;
};

class Flatten : public SameElements<Flatten> {
 public:
  explicit Flatten(const NodeView& node) : axis_(node.get<int64_t>("axis", 1)) {}
  Dims shape(OpContext&, const Dims& x) const { return plan::flatten(x, axis_); }

 private:
  int64_t axis_;
};

class Squeeze : public SameElements<Squeeze> {
 public:
  explicit Squeeze(const NodeView& node) : axes_(node, "axes", 1) {}
  Dims shape(OpContext& ctx, const Dims& x) const { return plan::squeeze(x, axes_.get(ctx)); }

 private:
  IntsParam axes_;
};

class Unsqueeze : public SameElements<Unsqueeze> {
 public:
  explicit Unsqueeze(const NodeView& node) : axes_(node, "axes", 1) {}
  Dims shape(OpContext& ctx, const Dims& x) const { return plan::unsqueeze(x, axes_.get(ctx)); }

 private:
  IntsParam axes_;
};

class Identity : public SameElements<Identity> {
 public:
  explicit Identity(const NodeView&) {}
  Dims shape(OpContext&, const Dims& x) const { return x; }
};

template <typename T>
OpEntry entry(const char* type, std::vector<int> cpu_inputs) {
  return {.type = type,
          .supports = supports_any_type,
          .create = make_op<T>,
          .cpu_inputs = std::move(cpu_inputs),
          .aliases = {{0, 0}}};
}

const Register reshape{entry<Reshape>("Reshape", {1})};
const Register flatten{entry<Flatten>("Flatten", {})};
const Register squeeze{entry<Squeeze>("Squeeze", {1})};        // axes: an attribute before opset 13
const Register unsqueeze{entry<Unsqueeze>("Unsqueeze", {1})};  // axes: an attribute before opset 13
const Register identity{entry<Identity>("Identity", {})};

}  // namespace
}  // namespace cuvil
