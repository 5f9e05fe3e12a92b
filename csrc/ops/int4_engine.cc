#include "ops/int4_engine.h"

#include <algorithm>
#include <limits>
#include <sstream>

#include "kernels/int4_gemv.cuh"
#include "ops/gemm_engine.h"

namespace cuvil {
namespace {

// Raised when the kernels change enough that what was measured before says nothing.
constexpr size_t kKernelVersion = 3;
// Rows of x up to which float32 reads the codes rather than the weight as numbers.
constexpr int64_t kGemvRows = 8;
// The library is worth a try from this many rows on, and as long as the weight as numbers is no larger.
constexpr int64_t kLibraryRows = 48;
constexpr size_t kLibraryBytes = size_t{1} << 30;
// Unmeasured, the library takes over here.
constexpr int64_t kManyRows = 512;
constexpr int64_t kMostRows = 4096;  // more are like this many

// Products of about as many rows share a choice: to the next power of two.
int64_t rows_class(int64_t m) {
  int64_t c = 8;
  while (c < m && c < kMostRows) c *= 2;
  return c;
}

size_t dense_bytes(const Int4Weight& w) {
  return static_cast<size_t>(w.rows) * static_cast<size_t>(w.depth) * size_of(w.dtype);
}

GemmProblem dense_problem(const Int4Product& p, bool tf32) {
  GemmProblem g;
  g.dtype = p.weight.dtype;
  g.m = p.m, g.n = p.weight.rows, g.k = p.weight.depth;
  g.trans_b = true;
  g.bias = p.bias != nullptr;
  g.accumulate = p.residual != nullptr;
  g.activation = p.activation.kind, g.activation_a = p.activation.a, g.activation_b = p.activation.b;
  g.tf32 = tf32;
  return g;
}

GemmOperands dense_operands(const Int4Product& p, const void* numbers) {
  GemmOperands o;
  o.a = p.x, o.b = numbers, o.bias = p.bias, o.c = p.residual, o.d = p.y;
  return o;
}

// As the copy engine wants x.
bool aligned(const Int4Product& p) { return reinterpret_cast<uintptr_t>(p.x) % 16 == 0; }

std::string key_of(const Int4Product& p) {
  const Int4Weight& w = p.weight;
  return concat("int4 ", name_of(w.dtype), " b", w.bits, ' ', w.depth, 'x', w.rows, " g", w.group_shift, " z",
                w.zeros != nullptr, w.offsets != nullptr, " m", rows_class(p.m), aligned(p) ? "" : " unaligned");
}

// The number of blocks may differ: it depends on the rows of x.
bool same_kernel(Int4Way a, const Int4Way& b) {
  a.blocks = b.blocks;
  return a == b && b.blocks > 0;
}

Int4Product rows_of(const Int4Product& p, int64_t first, int64_t count) {
  Int4Product part = p;
  const auto element = static_cast<int64_t>(size_of(p.weight.dtype));
  part.m = count;
  part.x = static_cast<const char*>(p.x) + first * p.weight.depth * element;
  part.y = static_cast<char*>(p.y) + first * p.weight.rows * element;
  if (p.residual) part.residual = static_cast<const char*>(p.residual) + first * p.weight.rows * element;
  return part;
}

}  // namespace

void Int4Engine::run(OpContext& ctx, const Int4Product& p) {
  if (p.m == 0 || p.weight.rows == 0) return;
  if (p.weight.dtype == DType::kF32) {
    if (p.m > kGemvRows) return run_library(ctx, p);
    const auto f32 = [](const void* x) { return static_cast<const float*>(x); };
    CUVIL_CUDA(launch_int4_gemv({p.weight, f32(p.x), static_cast<int>(p.m), f32(p.bias), f32(p.residual), p.activation,
                                 static_cast<float*>(p.y)},
                                ctx.stream()));
    return;
  }
  if (p.weight.depth == 0) return run_library(ctx, p);
  const Choice choice = choose(ctx, p);
  if (choice.library) return run_library(ctx, p);
  const int64_t most = p.tiles / int4_row_tiles(p.weight, choice.way) * choice.way.columns;
  for (int64_t first = 0; first < p.m; first += most)
    run_kernel(ctx, rows_of(p, first, std::min(most, p.m - first)), choice.way);
}

void Int4Engine::run_library(OpContext& ctx, const Int4Product& p) {
  void* numbers = ctx.scratch(dense_bytes(p.weight));
  CUVIL_CUDA(launch_unpack(p.weight, numbers, ctx.stream()));
  ctx.shared<GemmEngine>().run(ctx, dense_problem(p, ctx.allow_tf32()), dense_operands(p, numbers));
}

Int4GemmParams Int4Engine::params_of(OpContext& ctx, const Int4Product& p, Int4Way way) const {
  Int4GemmParams g;
  g.weight = p.weight;
  g.x = p.x, g.m = static_cast<int>(p.m), g.bias = p.bias, g.residual = p.residual, g.activation = p.activation;
  g.y = p.y;
  const int64_t total = int4_tiles(p.weight, way, g.m) * int4_steps(p.weight, way);
  way.blocks = static_cast<int>(std::min<int64_t>(way.blocks, total));
  g.way = way;
  g.partial = static_cast<float*>(ctx.scratch(int4_partial_bytes(p.weight, way, g.m)));
  g.counters = p.counters;
  g.constant_weight = p.constant;
  return g;
}

void Int4Engine::run_kernel(OpContext& ctx, const Int4Product& p, const Int4Way& way) {
  CUVIL_CUDA(launch_int4_gemm(params_of(ctx, p, way), ctx.stream()));
}

std::vector<Int4Engine::Choice> Int4Engine::choices(OpContext& ctx, const Int4Product& p) const {
  std::vector<Choice> all;
  for (const Int4Way& way : int4_ways(p.weight, p.m, ctx.device(), !tuning_.only.empty()))
    if ((!way.wgmma && way.warps == 0) || aligned(p)) all.push_back({.library = false, .way = way});
  if (p.m >= kLibraryRows && dense_bytes(p.weight) <= kLibraryBytes)
    all.insert(p.m >= kManyRows ? all.begin() : all.end(), Choice{.library = true, .way = {}});
  require(!all.empty(), "the device has too little shared memory for groups of ", 1 << p.weight.group_shift);
  return all;
}

Int4Engine::Choice Int4Engine::choose(OpContext& ctx, const Int4Product& p) {
  const std::string key = key_of(p);
  if (const auto known = chosen_.find(key); known != chosen_.end()) return known->second;
  const std::vector<Choice> all = choices(ctx, p);
  if (!tuning_.measure) {
    for (const Choice& c : all)
      if ((c.library ? "library" : int4_way_name(p.weight, p.m, c.way)).starts_with(tuning_.only)) return c;
    // Whoever asks for one of our kernels means it: a test of it must not pass with another.
    for (const char* kernel : {"mma", "wgmma", "direct"})
      if (tuning_.only.starts_with(kernel))
        fail(ErrorKind::kNotImplemented, "CUVIL_TUNING=only:", tuning_.only, " is no way to compute ", key);
    return all.front();
  }
  if (!cache_) cache_ = std::make_unique<TuningCache>("int4", kKernelVersion, ctx.device().name);
  if (const auto text = cache_->find(key, tuning_)) {
    std::istringstream in(*text);
    Choice c;
    // A way that is no candidate on this device comes from another program.
    if (in >> c.library >> c.way.wgmma >> c.way.warps >> c.way.columns >> c.way.wide >> c.way.stages >> c.way.blocks)
      for (const Choice& known : all)
        if (known.library == c.library && (c.library || same_kernel(known.way, c.way))) return chosen_[key] = c;
  }
  if (ctx.capturing()) return all.front();  // and remembers nothing

  const Choice* best = nullptr;
  double best_us = std::numeric_limits<double>::infinity();
  for (const Choice& c : all)
    if (const double us = measure(ctx, p, c); us < best_us) best_us = us, best = &c;
  require(best != nullptr, "no kernel for ", key, " runs on this device");
  const Int4Way& way = best->way;
  cache_->put(key,
              concat(best->library, ' ', way.wgmma, ' ', way.warps, ' ', way.columns, ' ', way.wide, ' ', way.stages,
                     ' ', way.blocks),
              tuning_);
  return chosen_[key] = *best;
}

double Int4Engine::measure(OpContext& ctx, const Int4Product& p, const Choice& choice) {
  // A model's other weights drive this one out of the L2 cache between two runs. A fill of that size does it here, the
  // same for every candidate; of large weights little is left anyhow.
  const size_t l2 = ctx.device().l2_bytes;
  void* swept = p.weight.code_bytes() < 2 * l2 && p.m <= 256 ? ctx.scratch(l2) : nullptr;
  const auto sweep = [&](cudaStream_t stream) {
    if (swept) CUVIL_CUDA(cudaMemsetAsync(swept, 0, l2, stream));
  };
  if (!choice.library) {
    const int64_t most = p.tiles / int4_row_tiles(p.weight, choice.way) * choice.way.columns;
    const Int4GemmParams params = params_of(ctx, rows_of(p, 0, std::min(most, p.m)), choice.way);
    return static_cast<double>(p.m) / params.m * measurer_.microseconds(ctx.stream(), [&](cudaStream_t stream) {
      sweep(stream);
      CUVIL_CUDA(launch_int4_gemm(params, stream));
    });
  }
  try {
    auto& gemm = ctx.shared<GemmEngine>();
    void* numbers = ctx.scratch(dense_bytes(p.weight));
    const GemmOperands operands = dense_operands(p, numbers);
    const GemmPlan& plan = gemm.plan(ctx, dense_problem(p, false), operands);
    void* workspace = ctx.scratch(GemmEngine::plan_workspace(plan));
    return measurer_.microseconds(ctx.stream(), [&](cudaStream_t stream) {
      sweep(stream);
      CUVIL_CUDA(launch_unpack(p.weight, numbers, stream));
      gemm.launch(plan, operands, workspace, stream);
    });
  } catch (const Error& e) {
    // Without the library, or without memory for the weight as numbers, the kernel does it.
    if (e.kind() != ErrorKind::kMissingLibrary && e.kind() != ErrorKind::kOutOfMemory) throw;
    return std::numeric_limits<double>::infinity();
  }
}

}  // namespace cuvil
