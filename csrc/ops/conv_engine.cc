#include "ops/conv_engine.h"

#include <algorithm>
#include <limits>

#include "core/keyed_file.h"

namespace cuvil {
namespace {

bool aligned16(const ConvOperands& o) {
  const auto fits = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  return fits(o.x) && fits(o.w) && fits(o.bias) && fits(o.z) && fits(o.y);
}

// A plan depends on cuDNN, the device and the problem; a later session takes it from there instead of compiling anew.
KeyedFile plan_file(const DeviceInfo& device, const std::string& problem, const std::string& id) {
  return {"cudnn", ".plan", concat(libs::cudnn().get_version(), '\n', device.name, '\n', problem, '\n', id)};
}

void save(const ConvCandidate& candidate, const KeyedFile& file) {
  if (const std::string plan = candidate.serialized(); !plan.empty()) write_keyed_file(file, plan);
}

}  // namespace

std::string ConvProblem::key() const {
  std::ostringstream out;
  const auto list = [&](const char* name, const Spatial& s) {
    out << ' ' << name;
    for (int i = 0; i < window.rank; ++i) out << (i ? "x" : "") << s[static_cast<size_t>(i)];
  };
  out << (transposed ? "transposed " : "conv ") << name_of(dtype) << (channels_last ? " last" : " first") << " n" << n
      << " c" << c << " k" << k << " g" << groups;
  list("in", window.in);
  list("kernel", window.kernel);
  list("stride", window.stride);
  list("dilation", window.dilation);
  list("begin", window.pad_begin);
  list("end", window.pad_end);
  out << " b" << bias << " z" << z << " act" << static_cast<int>(activation) << ',' << activation_a << ','
      << activation_b << " tf32:" << tf32 << " al" << alignment;
  return out.str();
}

ConvEngine::~ConvEngine() {
  chosen_.clear();
  if (handle_) libs::cudnn().destroy(handle_);
}

void ConvEngine::run(OpContext& ctx, ConvProblem problem, const ConvOperands& operands) {
  problem.alignment = aligned16(operands) ? 16 : static_cast<int>(size_of(problem.dtype));
  const ConvCandidate& best = choose(ctx, problem, operands);
  void* workspace = best.workspace() ? ctx.scratch(best.workspace()) : nullptr;
  best.launch(operands, workspace, ctx.stream());
}

ConvCandidates ConvEngine::candidates(OpContext& ctx, const ConvProblem& problem, const ConvOperands& operands,
                                      const ConvFilter& filter) {
  ConvCandidates found;
  add_depthwise_candidate(problem, filter, found);
  add_gemm_candidate(ctx, problem, operands, filter, found);
  if (filter.full(found) || !filter.reaches("cudnn:")) return found;
  if (!handle_) CUVIL_CUDNN(libs::cudnn().create(&handle_));
  add_cudnn_candidates(handle_, problem, filter, found);
  return found;
}

const ConvCandidate& ConvEngine::choose(OpContext& ctx, const ConvProblem& problem, const ConvOperands& operands) {
  std::unique_ptr<ConvCandidate>& slot = chosen_[problem];
  if (slot) return *slot;
  const std::string key = problem.key();
  const bool measure = tuning_.measure && !ctx.capturing();
  const ConvFilter filter{
      .id = "", .prefix = tuning_.only, .limit = measure ? 0 : 1, .stored = "", .all_plans = tuning_.thorough};
  if (tuning_.measure) {
    if (!cache_) cache_ = std::make_unique<TuningCache>("cudnn", libs::cudnn().get_version(), ctx.device().name);
    if (const auto id = cache_->find(key, tuning_)) {
      const KeyedFile file = plan_file(ctx.device(), key, *id);
      const std::string stored = read_keyed_file(file).value_or("");
      ConvCandidates known =
          candidates(ctx, problem, operands, {.id = *id, .prefix = "", .limit = 1, .stored = stored});
      if (!known.empty()) {
        if (stored.empty()) save(*known.front(), file);
        return *(slot = std::move(known.front()));
      }
    }
  }
  ConvCandidates found = candidates(ctx, problem, operands, filter);
  if (found.empty())
    fail(ErrorKind::kNotImplemented, "cuDNN has no plan for ", key, "; run this node on another execution provider");
  if (!measure) return *(slot = std::move(found.front()));

  std::unique_ptr<ConvCandidate> best = fastest(ctx, std::move(found), operands);
  // Plans that cuDNN offers may still fail to run; the unfused ones were not built while fused ones seemed to do.
  const ConvFilter unfused{.id = "", .prefix = "cudnn:plain", .limit = 0, .stored = "", .all_plans = tuning_.thorough};
  if (!best) best = fastest(ctx, candidates(ctx, problem, operands, unfused), operands);
  if (!best) fail(ErrorKind::kNotImplemented, "none of cuDNN's plans runs for ", key);
  save(*best, plan_file(ctx.device(), key, best->id()));
  cache_->put(key, best->id(), tuning_);
  return *(slot = std::move(best));
}

std::unique_ptr<ConvCandidate> ConvEngine::fastest(OpContext& ctx, ConvCandidates found, const ConvOperands& operands) {
  size_t bytes = 0;
  for (const auto& c : found) bytes = std::max(bytes, c->workspace());
  void* workspace = bytes ? ctx.scratch(bytes) : nullptr;
  double best_us = std::numeric_limits<double>::infinity();
  std::unique_ptr<ConvCandidate>* best = nullptr;
  for (auto& c : found) {
    const double us =
        measurer_.microseconds(ctx.stream(), [&](cudaStream_t stream) { c->launch(operands, workspace, stream); });
    if (us < best_us) best_us = us, best = &c;
  }
  return best ? std::move(*best) : nullptr;
}

}  // namespace cuvil
