// Einsum, opset 12 and later, of any number of inputs.
#include "plan/einsum.h"

#include <algorithm>
#include <vector>

#include "kernels/strided_product.cuh"
#include "ops/copy_view.h"
#include "ops/gemm_engine.h"
#include "ops/reduce_passes.h"

namespace cuvil {
namespace {

std::string supports(const NodeView& node) {
  const DType t = node.input_dtype(0);
  int inputs = 0;
  while (node.has_input(inputs)) ++inputs;
  for (int i = 0; i < inputs; ++i)
    if (node.input_dtype(i) != t) return concat("inputs 0 and ", i, " are ", name_of(t), " and of another type");
  try {
    plan::parse_einsum(node.get<std::string>("equation", ""), inputs);
  } catch (const Error& e) {
    return e.what();
  }
  return gemm_dtype_reason(t, "input 0");
}

class Einsum : public Op {
 public:
  explicit Einsum(const NodeView& node) : equation_(plan::parse_einsum(node.get<std::string>("equation", ""), -1)) {}

  void compute(OpContext& ctx) override {
    const size_t inputs = equation_.inputs.size();
    tensors_.assign(inputs, nullptr);
    std::vector<Dims> shapes(inputs);
    for (size_t i = 0; i < inputs; ++i) {
      const Tensor x = ctx.input(static_cast<int>(i));
      tensors_[i] = x.data;
      shapes[i] = x.shape;
    }
    if (shapes != shapes_) {
      plan_ = plan::plan_einsum(equation_, shapes);
      shapes_ = shapes;
    }
    const DType dtype = ctx.input(0).dtype;
    const Tensor y = ctx.output(0, plan_.output);
    if (plan_.zero) CUVIL_CUDA(cudaMemsetAsync(y.data, 0, y.bytes(), ctx.stream()));
    for (size_t i = 0; i < plan_.steps.size(); ++i) {
      const plan::EinsumStep& step = plan_.steps[i];
      const bool last = i + 1 == plan_.steps.size();
      void* result = last ? y.data : ctx.scratch(static_cast<size_t>(step.elements) * size_of(dtype));
      run(ctx, step, dtype, result);
      tensors_.push_back(result);
    }
  }

 private:
  void run(OpContext& ctx, const plan::EinsumStep& step, DType dtype, void* result) const {
    const void* a = tensors_[static_cast<size_t>(step.a)];
    const void* b = step.b < 0 ? nullptr : tensors_[static_cast<size_t>(step.b)];
    switch (step.kind) {
      case plan::EinsumStep::Kind::kCopy:
        return copy_view(ctx, a, result, dtype, step.view);
      case plan::EinsumStep::Kind::kReduce:
        return run_reduce(ctx, Reduction::kSum, step.reduce, dtype, a, result);
      case plan::EinsumStep::Kind::kGemm: {
        GemmProblem problem;
        problem.dtype = dtype;
        problem.m = step.m, problem.n = step.n, problem.k = step.k;
        problem.batch = step.batch, problem.stride_a = step.stride_a, problem.stride_b = step.stride_b;
        problem.trans_a = step.trans_a, problem.trans_b = step.trans_b;
        problem.tf32 = ctx.allow_tf32();
        return ctx.shared<GemmEngine>().run(ctx, problem, GemmOperands{.a = a, .b = b, .d = result});
      }
      case plan::EinsumStep::Kind::kProduct:
        return multiply(ctx, step, dtype, a, b, result);
    }
  }

  static void multiply(OpContext& ctx, const plan::EinsumStep& step, DType dtype, const void* a, const void* b,
                       void* result) {
    require(step.extent.size() <= kMaxProductRank, "Einsum: a product has ", step.extent.size(),
            " dimensions; at most ", kMaxProductRank, " are served");
    StridedProductParams p{.a = a, .b = b, .y = result, .dtype = dtype};
    p.rank = static_cast<int>(step.extent.size());
    p.reduced = step.reduced;
    std::copy(step.extent.begin(), step.extent.end(), p.extent);
    std::copy(step.step_a.begin(), step.step_a.end(), p.step_a);
    std::copy(step.step_b.begin(), step.step_b.end(), p.step_b);
    CUVIL_CUDA(launch_strided_product(p, ctx.stream()));
  }

  plan::EinsumEquation equation_;
  std::vector<Dims> shapes_;  // what plan_ is for
  plan::EinsumPlan plan_ = {};
  std::vector<const void*> tensors_;
};

const Register einsum{{.type = "Einsum", .since = 12, .supports = supports, .create = make_op<Einsum>}};

}  // namespace
}  // namespace cuvil
