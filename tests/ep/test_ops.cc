// Ops that exercise the EP and nothing else. Those of domain cuvil.test are function nodes whose bodies the tests give;
// the standard ones are here so that a library with these ops alone runs small models.
#include <cstring>

#include "core/error.h"
#include "ops/op.h"
#include "test_kernels.h"

namespace cuvil::test {
namespace {

std::string wants_f32(const NodeView& node) {
  return node.input_dtype(0) == DType::kF32 ? "" : concat("input 0 is ", name_of(node.input_dtype(0)), ", not f32");
}

std::string anything(const NodeView&) { return ""; }

template <Work kWork>
class Elementwise : public Op {
 public:
  explicit Elementwise(const NodeView&) {}
  void compute(OpContext& ctx) override {
    const Tensor a = ctx.input(0);
    const Tensor b = kWork == Work::kPlus ? ctx.input(1) : a;
    require(a.shape == b.shape, "shapes ", a.shape.to_string(), " and ", b.shape.to_string(), " differ");
    const Tensor y = ctx.output(0, a.shape);
    enqueue(kWork, a.as<float>(), b.as<float>(), y.as<float>(), y.size(), ctx.stream());
  }
};

// Y = X + scale * W, with 3 * W kept by prepack instead of W (scale is 3).
class Packed : public Op {
 public:
  explicit Packed(const NodeView& node) : packs_(node.constant_input(1).has_value()) {}
  bool prepack(int input, const Tensor& weight, cudaStream_t stream) override {
    if (input != 1 || !packs_) return false;
    DeviceBuffer twice(weight.bytes());
    buffer_ = DeviceBuffer(weight.bytes());
    enqueue(Work::kTwice, weight.as<float>(), nullptr, static_cast<float*>(twice.get()), weight.size(), stream);
    enqueue(Work::kPlus, weight.as<float>(), static_cast<float*>(twice.get()), static_cast<float*>(buffer_.get()),
            weight.size(), stream);
    CUVIL_CUDA(cudaStreamSynchronize(stream));
    return true;
  }
  void compute(OpContext& ctx) override {
    require(!ctx.has_input(1), "the original of a packed weight is still there");
    const Tensor x = ctx.input(0);
    const Tensor y = ctx.output(0, x.shape);
    enqueue(Work::kPlus, x.as<float>(), static_cast<const float*>(buffer_.get()), y.as<float>(), x.size(),
            ctx.stream());
  }

 private:
  const bool packs_;
  DeviceBuffer buffer_;
};

// Y = 4 X through two scratch buffers; `bytes` more scratch is asked for (attribute), to run out of memory.
class Scratch : public Op {
 public:
  explicit Scratch(const NodeView& node) : extra_(node.get<int64_t>("bytes", 0)) {}
  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0);
    auto* t = static_cast<float*>(ctx.scratch(x.bytes()));
    ctx.scratch(static_cast<size_t>(extra_));
    enqueue(Work::kTwice, x.as<float>(), nullptr, t, x.size(), ctx.stream());
    const Tensor y = ctx.output(0, x.shape);
    enqueue(Work::kTwice, t, nullptr, y.as<float>(), x.size(), ctx.stream());
  }

 private:
  const int64_t extra_;
};

// Fails in the run whose number is `run` (attribute), counting from 0.
class Fails : public Elementwise<Work::kTwice> {
 public:
  explicit Fails(const NodeView& node) : Elementwise(node), run_(node.get<int64_t>("run", 0)) {}
  void compute(OpContext& ctx) override {
    if (run_-- == 0) fail(ErrorKind::kNotImplemented, "told to fail");
    Elementwise::compute(ctx);
  }

 private:
  int64_t run_;
};

// Waits for its stream, which invalidates a capture.
class Synchronises : public Elementwise<Work::kTwice> {
 public:
  using Elementwise::Elementwise;
  void compute(OpContext& ctx) override {
    Elementwise::compute(ctx);
    CUVIL_CUDA(cudaStreamSynchronize(ctx.stream()));
  }
};

class ShapeOf : public Op {
 public:
  explicit ShapeOf(const NodeView&) {}
  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0);
    const Tensor y = ctx.output(0, {x.shape.rank()});
    std::memcpy(y.data, x.shape.data(), y.bytes());
  }
};

class ReshapeTo : public Op {
 public:
  explicit ReshapeTo(const NodeView&) {}
  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0), s = ctx.input(1);
    const Tensor y = ctx.output(0, Dims(s.as<int64_t>(), static_cast<size_t>(s.size())));
    require(y.size() == x.size(), "cannot reshape ", x.shape.to_string(), " to ", y.shape.to_string());
    if (y.data != x.data)
      CUVIL_CUDA(cudaMemcpyAsync(y.data, x.data, x.bytes(), cudaMemcpyDeviceToDevice, ctx.stream()));
  }
};

// Int arithmetic that should never run here: it belongs on the CPU.
class NeverRuns : public Op {
 public:
  explicit NeverRuns(const NodeView&) {}
  void compute(OpContext&) override { fail(ErrorKind::kRuntime, "shape arithmetic reached the GPU"); }
};

constexpr const char* kDomain = "cuvil.test";
const Register twice({.domain = kDomain,
                      .type = "Twice",
                      .supports = wants_f32,
                      .create = make_op<Elementwise<Work::kTwice>>,
                      .may_inplace = {{0, 0}}});
const Register plus({.domain = kDomain,
                     .type = "Plus",
                     .supports = wants_f32,
                     .create = make_op<Elementwise<Work::kPlus>>,
                     .may_inplace = {{0, 0}, {1, 0}}});
const Register spin(
    {.domain = kDomain, .type = "Spin", .supports = wants_f32, .create = make_op<Elementwise<Work::kSpin>>});
const Register fault(
    {.domain = kDomain, .type = "Fault", .supports = wants_f32, .create = make_op<Elementwise<Work::kFault>>});
const Register packed({.domain = kDomain, .type = "Packed", .supports = wants_f32, .create = make_op<Packed>});
const Register scratch({.domain = kDomain, .type = "Scratch", .supports = wants_f32, .create = make_op<Scratch>});
const Register fails({.domain = kDomain, .type = "Fails", .supports = wants_f32, .create = make_op<Fails>});
const Register synchronises(
    {.domain = kDomain, .type = "Synchronises", .supports = wants_f32, .create = make_op<Synchronises>});
const Register shape(
    {.domain = "", .type = "Shape", .supports = anything, .create = make_op<ShapeOf>, .cpu_outputs = {0}});
const Register reshape({.domain = "",
                        .type = "Reshape",
                        .since = 5,
                        .supports = anything,
                        .create = make_op<ReshapeTo>,
                        .cpu_inputs = {1},
                        .aliases = {{0, 0}}});
const Register gather({.domain = "", .type = "Gather", .supports = anything, .create = make_op<NeverRuns>});
const Register concat_({.domain = "", .type = "Concat", .supports = anything, .create = make_op<NeverRuns>});
const Register mul({.domain = "", .type = "Mul", .supports = anything, .create = make_op<NeverRuns>});

}  // namespace
}  // namespace cuvil::test
