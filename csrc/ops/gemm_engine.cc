#include "ops/gemm_engine.h"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <sstream>

#include "kernels/epilogue.cuh"
#include "ops/gemm_plan.h"

namespace cuvil {
namespace {

constexpr int kSuggestions = 8, kAllSuggestions = 64;

// Hopper's split-K and stream-K kernels profit from more workspace than older ones.
size_t max_workspace(const DeviceInfo& device) { return device.sm >= 90 ? size_t{32} << 20 : size_t{4} << 20; }

// The largest power of two up to 256 that divides the address; 256 for absent operands.
int alignment_of(const void* p) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(p) | 256;
  return static_cast<int>(address & (~address + 1));
}

std::string to_text(const cublasLtMatmulAlgo_t& algo) {
  std::ostringstream out;
  out << std::hex;
  for (size_t i = 0; i < std::size(algo.data); ++i) out << (i ? "." : "") << algo.data[i];
  return out.str();
}

bool from_text(const std::string& text, cublasLtMatmulAlgo_t* algo) {
  std::istringstream in(text);
  in >> std::hex;
  for (size_t i = 0; i < std::size(algo->data); ++i) {
    char dot = '.';
    if (i && !(in >> dot)) return false;
    if (dot != '.' || !(in >> algo->data[i])) return false;
  }
  return in.peek() == std::istringstream::traits_type::eof();
}

// In the cache and in CUVIL_TUNING=only:NAME.
std::string to_name(const ProductCut& cut) { return concat("small", cut.rows, 'x', cut.split); }

}  // namespace

std::string GemmProblem::key() const {
  return concat("gemm ", name_of(dtype), ' ', batch, 'x', m, 'x', n, 'x', k, " t", trans_a, trans_b, " s", stride_a,
                ',', stride_b, " b", bias, " c", accumulate, " act", static_cast<int>(activation), " tf32:", tf32,
                " al", align_a, ',', align_b, ',', align_c, ',', align_d);
}

std::string GemmProblem::describe() const {
  return concat(name_of(dtype), " product of ", batch, " x [", m, ",", k, "] and [", k, ",", n, "]");
}

std::string gemm_dtype_reason(DType dtype, const char* what) {
  if (is_float(dtype)) return "";
  return concat(what, " is ", name_of(dtype), "; f32, f16, bf16 and f64 are served");
}

GemmEngine::GemmEngine() : lt_(libs::cublaslt()) { CUVIL_CUBLASLT(lt_.create(&handle_)); }

GemmEngine::~GemmEngine() {
  plans_.clear();
  lt_.destroy(handle_);
}

void GemmEngine::run(OpContext& ctx, const GemmProblem& problem, std::span<const GemmOperands> all) {
  if (problem.m == 0 || problem.n == 0 || problem.batch == 0) return;
  void* workspace = nullptr;
  size_t bytes = 0;
  for (const GemmOperands& o : all) {
    if (problem.k == 0) {
      run_empty_sum(ctx, problem, o);
      continue;
    }
    const GemmPlan& chosen = plan(ctx, problem, o);
    if (chosen.workspace() > bytes) workspace = ctx.scratch(bytes = chosen.workspace());
    launch(chosen, o, workspace, ctx.stream());
  }
}

// cuBLASLt takes no empty operand, the epilogue alone is the answer.
void GemmEngine::run_empty_sum(OpContext& ctx, const GemmProblem& problem, const GemmOperands& o) {
  require(!problem.accumulate || o.beta == 1, "a product over K = 0 with beta = ", o.beta, " is not supported");
  const int64_t count = problem.batch * problem.m * problem.n;
  const bool in_place = problem.accumulate && o.c == o.d;
  if (!in_place) CUVIL_CUDA(cudaMemsetAsync(o.d, 0, static_cast<size_t>(count) * size_of(problem.dtype), ctx.stream()));
  EpilogueParams e;
  e.y = o.d;
  e.bias = problem.bias ? o.bias : nullptr;
  e.z = problem.accumulate && !in_place ? o.c : nullptr;
  e.dtype = problem.dtype;
  e.count = count;
  e.channels = problem.n;
  e.activation = {problem.activation, problem.activation_a, problem.activation_b};
  CUVIL_CUDA(launch_epilogue(e, ctx.stream()));
}

const GemmPlan& GemmEngine::plan(OpContext& ctx, GemmProblem problem, const GemmOperands& o, int max_alignment) {
  require(problem.batch <= INT32_MAX, problem.describe(), ": more than 2^31 - 1 batches");
  problem.align_a = std::min(alignment_of(o.a), max_alignment);
  problem.align_b = std::min(alignment_of(o.b), max_alignment);
  problem.align_c = std::min(alignment_of(problem.accumulate ? o.c : o.d), max_alignment);
  problem.align_d = std::min(alignment_of(o.d), max_alignment);
  std::unique_ptr<GemmPlan>& slot = plans_[problem];
  if (!slot) slot = make_plan(ctx, problem, o);
  return *slot;
}

size_t GemmEngine::plan_workspace(const GemmPlan& plan) { return plan.workspace(); }

void GemmEngine::launch(const GemmPlan& plan, const GemmOperands& o, void* workspace, cudaStream_t stream) const {
  plan.launch(handle_, o, workspace, stream);
}

std::unique_ptr<GemmPlan> GemmEngine::make_plan(OpContext& ctx, const GemmProblem& problem, const GemmOperands& o) {
  auto fused = std::make_unique<GemmPlan>(lt_, problem, true);
  if (choose_algorithm(ctx, *fused, o)) return fused;
  // No kernel with that epilogue (f64 with bias, for one): product first, the rest in our own kernel.
  auto plain = std::make_unique<GemmPlan>(lt_, problem, false);
  if (choose_algorithm(ctx, *plain, o)) return plain;
  fail(ErrorKind::kNotImplemented, "cuBLASLt has no algorithm for the ", problem.describe());
}

// What an earlier session measured, or what CUVIL_TUNING asks for.
bool GemmEngine::adopt_without_measuring(OpContext& ctx, GemmPlan& plan, const std::string& key, size_t max_workspace) {
  const std::vector<ProductCut> cuts = plan.cuts(ctx.device());
  std::string wanted = tuning_.only;
  if (tuning_.measure) {
    if (!cache_) cache_ = std::make_unique<TuningCache>("cublaslt", lt_.get_version(), ctx.device().name);
    wanted = cache_->find(key, tuning_).value_or("");
    cublasLtMatmulAlgo_t remembered{};
    if (from_text(wanted, &remembered) && plan.adopt(handle_, remembered, max_workspace)) return true;
  }
  const auto cut = std::ranges::find(cuts, wanted, to_name);
  if (cut == cuts.end()) {
    // Whoever asks for our kernel means it: a test of it must not pass with the library's.
    if (tuning_.only.starts_with("small"))
      fail(ErrorKind::kNotImplemented, "CUVIL_TUNING=only:", tuning_.only, " is no way to compute the ",
           plan.problem().describe());
    return false;
  }
  plan.adopt(*cut);
  return true;
}

bool GemmEngine::choose_algorithm(OpContext& ctx, GemmPlan& plan, const GemmOperands& o) {
  const size_t limit = max_workspace(ctx.device());
  const std::string key = concat(plan.fused() ? "fused " : "plain ", plan.problem().key());
  if (adopt_without_measuring(ctx, plan, key, limit)) return true;
  const auto results = plan.suggestions(handle_, limit, tuning_.thorough ? kAllSuggestions : kSuggestions);
  const std::vector<ProductCut> cuts = plan.cuts(ctx.device());
  if (results.empty()) return false;
  plan.adopt(results.front());
  // A session that is captured on its very first run keeps the library's favourite, and remembers nothing.
  if (!tuning_.measure || ctx.capturing() || results.size() + cuts.size() == 1) return true;

  size_t workspace_bytes = 0;
  for (const auto& r : results) workspace_bytes = std::max(workspace_bytes, r.workspaceSize);
  void* workspace = workspace_bytes ? ctx.scratch(workspace_bytes) : nullptr;
  GemmOperands measured = o;
  if (plan.problem().accumulate && o.c == o.d) {
    // Repeated runs would add up in place; they go to a copy's place instead.
    const GemmProblem& p = plan.problem();
    measured.d = ctx.scratch(static_cast<size_t>(p.batch * p.m * p.n) * size_of(p.dtype));
  }
  std::string best;
  double best_us = std::numeric_limits<double>::infinity();
  std::function<void()> adopt_best;
  const auto compete = [&](const auto& candidate, const std::string& name) {
    plan.adopt(candidate);
    const double us = measurer_.microseconds(
        ctx.stream(), [&](cudaStream_t stream) { plan.launch(handle_, measured, workspace, stream); });
    if (us >= best_us) return;
    best_us = us, best = name;
    adopt_best = [&plan, candidate] { plan.adopt(candidate); };
  };
  for (const auto& candidate : results) compete(candidate, to_text(candidate.algo));
  for (const ProductCut& cut : cuts) compete(cut, to_name(cut));
  if (best.empty()) return false;
  adopt_best();
  cache_->put(key, best, tuning_);
  return true;
}

}  // namespace cuvil
