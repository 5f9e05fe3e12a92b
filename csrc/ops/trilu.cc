// Trilu, opset 14 and later.
#include "kernels/trilu.cuh"

#include <algorithm>

#include "ops/params.h"

namespace cuvil {
namespace {

class Trilu : public Op {
 public:
  explicit Trilu(const NodeView& node) : upper_(node.get<int64_t>("upper", 1) != 0) {}

  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(0);
    const int rank = x.shape.rank();
    require(rank >= 2, "Trilu: rank ", rank, "; at least 2 is required");
    const int64_t rows = x.shape[rank - 2], columns = x.shape[rank - 1];
    int64_t k = 0;
    if (ctx.has_input(1)) {
      const std::vector<int64_t> values = read_ints(ctx.input(1));
      require(values.size() == 1, "Trilu: k holds ", values.size(), " values; one is required");
      k = std::clamp(values[0], -rows, columns);  // beyond these nothing changes, and the sum with a row could overflow
    }
    const Tensor y = ctx.output(0, x.shape);
    const TriluParams p{x.data, y.data, static_cast<int>(size_of(x.dtype)), x.shape.product(0, rank - 2), rows, columns,
                        k,      upper_};
    CUVIL_CUDA(launch_trilu(p, ctx.stream()));
  }

 private:
  bool upper_;
};

const Register trilu{{.type = "Trilu",
                      .supports = supports_any_type,
                      .create = make_op<Trilu>,
                      .cpu_inputs = {1},
                      .may_inplace = {{0, 0}}}};

}  // namespace
}  // namespace cuvil
