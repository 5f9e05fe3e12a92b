// HannWindow, HammingWindow and BlackmanWindow (opset 17). The size is read on the host.
#include "kernels/signal_window.cuh"

#include <algorithm>

#include "ops/params.h"

namespace cuvil {
namespace {

struct Hann {
  static constexpr double a[3] = {0.5, 0.5, 0};
};
struct Hamming {
  static constexpr double a[3] = {25. / 46, 21. / 46, 0};
};
struct Blackman {
  static constexpr double a[3] = {0.42, 0.5, 0.08};
};

std::string supports(const NodeView& node) {
  const DType t = node.output_dtype(0);
  if (t == DType::kF32 || t == DType::kF16 || t == DType::kBF16 || t == DType::kF64) return "";
  return concat("the output is ", name_of(t), "; a floating type is required");
}

template <typename Window>
class SignalWindow : public Op {
 public:
  explicit SignalWindow(const NodeView& node) : periodic_(node.get<int64_t>("periodic", 1) != 0) {}

  void compute(OpContext& ctx) override {
    const std::vector<int64_t> size = read_ints(ctx.input(0));
    require(size.size() == 1 && size[0] >= 0, "input 0 is not one number that is 0 or more");
    const Tensor y = ctx.output(0, Dims{size[0]});
    SignalWindowParams p{.y = y.data, .dtype = y.dtype, .n = size[0]};
    p.length = static_cast<double>(periodic_ ? p.n : p.n - 1);
    std::copy(Window::a, Window::a + 3, p.a);
    CUVIL_CUDA(launch_signal_window(p, ctx.stream()));
  }

 private:
  bool periodic_;
};

template <typename Window>
OpEntry entry(const char* type) {
  return {.type = type, .since = 17, .supports = supports, .create = make_op<SignalWindow<Window>>, .cpu_inputs = {0}};
}

const Register hann{entry<Hann>("HannWindow")};
const Register hamming{entry<Hamming>("HammingWindow")};
const Register blackman{entry<Blackman>("BlackmanWindow")};

}  // namespace
}  // namespace cuvil
