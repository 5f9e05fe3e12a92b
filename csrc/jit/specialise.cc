#include "jit/specialise.h"

#include <algorithm>

#include "core/error.h"

namespace cuvil::jit {
namespace {

struct Collapsed {
  std::vector<int64_t> extents;  // outermost first
  std::vector<uint8_t> varies;   // of each input
};

// Merges neighbouring output dimensions along which every input behaves alike, and drops those of extent 1.
Collapsed collapse(const Dims& out, const std::vector<Dims>& shapes) {
  Collapsed c;
  c.varies.assign(shapes.size(), 0);
  std::vector<bool> last(shapes.size());
  for (int d = 0; d < out.rank(); ++d) {
    if (out[d] == 1) continue;
    std::vector<bool> moves(shapes.size());
    for (size_t k = 0; k < shapes.size(); ++k) {
      const int axis = d - (out.rank() - shapes[k].rank());
      moves[k] = axis >= 0 && shapes[k][axis] != 1;
    }
    if (!c.extents.empty() && moves == last) {
      c.extents.back() *= out[d];
      continue;
    }
    for (size_t k = 0; k < shapes.size(); ++k)
      if (moves[k]) c.varies[k] = static_cast<uint8_t>(c.varies[k] | 1u << c.extents.size());
    c.extents.push_back(out[d]);
    last = std::move(moves);
  }
  return c;
}

void choose_access(const Program& program, const Collapsed& c, Specialisation* spec) {
  const auto all = static_cast<uint8_t>((1u << c.extents.size()) - 1);
  spec->varies = c.varies;
  for (uint8_t v : c.varies)
    spec->access.push_back(v == all ? (all ? Access::kFull : Access::kScalar)
                                    : (v ? Access::kBroadcast : Access::kScalar));
  // An output of one element has no dimension left: its inputs are scalars.
  const bool any = std::ranges::count(spec->access, Access::kBroadcast) > 0;
  spec->rank = any ? static_cast<int>(c.extents.size()) : 0;
  if (!any) spec->varies.assign(program.inputs.size(), 0);
}

// Bytes of the widest element that moves in vectors: a scalar input is read once, whatever its type.
size_t widest(const Program& program, const Specialisation& spec) {
  size_t bytes = 1;
  for (size_t k = 0; k < program.inputs.size(); ++k)
    if (spec.access[k] != Access::kScalar) bytes = std::max(bytes, size_of(program.inputs[k]));
  for (size_t o = 0; o < program.outputs.size(); ++o) bytes = std::max(bytes, size_of(program.output_dtype(o)));
  return bytes;
}

int cost_of(const Program& program, const Specialisation& spec) {
  int cost = 0;
  for (const Instr& instr : program.code)
    // Double precision and 64-bit divisions take several times the instructions.
    cost += info(instr.op).cost * (size_of(instr.dtype) == 8 ? 3 : 1);
  if (spec.rank > 0 && !spec.rows) cost += 6 * spec.rank;
  return cost;
}

// Loads in flight hide memory latency; code size and registers bound them.
void choose_unroll(const Program& program, int64_t count, const DeviceTraits& device, Specialisation* spec) {
  constexpr int kMaxBytes = 128;  // of loaded data a thread: 32 registers
  constexpr int kMaxCost = 1200;  // of instructions a thread
  const int cost = cost_of(program, *spec);
  spec->outline = cost > kMaxCost;
  while (spec->vector > 1 && cost * spec->vector > kMaxCost) spec->vector /= 2;
  size_t bytes = 0;
  for (size_t k = 0; k < program.inputs.size(); ++k)
    if (spec->access[k] != Access::kScalar) bytes += size_of(program.inputs[k]) * static_cast<size_t>(spec->vector);
  const int64_t blocks = count / (int64_t{kThreads} * spec->vector);
  // A tensor that fills the machine only once gains more from blocks than from work a thread.
  if (blocks < int64_t{32} * device.sm_count) return;
  const int most = spec->vector == 1 ? 8 : 4;
  while (spec->unroll < most && 2 * spec->unroll * static_cast<int>(bytes) <= kMaxBytes &&
         2 * spec->unroll * spec->vector * cost <= kMaxCost)
    spec->unroll *= 2;
}

// Multiplier and shift with q = (umulhi(x, multiplier) + x) >> shift for every x < 2^31.
void set_division(uint64_t divisor, uint64_t* multiplier, uint64_t* shift) {
  uint64_t s = 0;
  while ((uint64_t{1} << s) < divisor) ++s;
  *shift = s;
  *multiplier = ((uint64_t{1} << 32) * ((uint64_t{1} << s) - divisor)) / divisor + 1;
}

std::vector<uint64_t> make_params(const Program& program, const Collapsed& c, int64_t count,
                                  const Specialisation& spec) {
  const ParamSlots slots(program, spec);
  std::vector<uint64_t> params(static_cast<size_t>(slots.total()), 0);
  const auto slot = [&](int i) -> uint64_t& { return params[static_cast<size_t>(i)]; };
  slot(slots.count()) = static_cast<uint64_t>(count);
  for (int d = 1; d < spec.rank; ++d) {
    const auto extent = static_cast<uint64_t>(c.extents[static_cast<size_t>(d)]);
    slot(slots.extent(d)) = extent;
    if (!spec.wide) set_division(extent, &slot(slots.extent(d) + 1), &slot(slots.extent(d) + 2));
  }
  for (size_t k = 0; k < program.inputs.size(); ++k) {
    uint64_t stride = 1;
    for (int d = spec.rank - 1; d >= 0; --d) {
      if (!(spec.varies[k] >> d & 1)) continue;
      slot(slots.stride(static_cast<int>(k), d)) = stride;
      stride *= static_cast<uint64_t>(c.extents[static_cast<size_t>(d)]);
    }
  }
  return params;
}

}  // namespace

ParamSlots::ParamSlots(const Program& program, const Specialisation& spec)
    : inputs_(static_cast<int>(program.inputs.size())),
      outputs_(static_cast<int>(program.outputs.size())),
      rank_(spec.rank),
      strides_(inputs_ + outputs_ + 1 + (rank_ > 1 ? 3 * (rank_ - 1) : 0)),
      total_(strides_ + inputs_ * rank_) {}

Plan make_plan(const Program& program, const std::vector<Dims>& shapes, bool aligned, const DeviceTraits& device) {
  Plan plan;
  for (const Dims& shape : shapes) plan.shape = broadcast(plan.shape, shape);
  plan.count = plan.shape.size();
  if (plan.count == 0) return plan;
  const Collapsed c = collapse(plan.shape, shapes);
  Specialisation& spec = plan.spec;
  choose_access(program, c, &spec);
  // The widest type moves 16 bytes an instruction; narrower ones move less, so that every access stays coalesced.
  spec.vector = aligned ? static_cast<int>(16 / widest(program, spec)) : 1;
  spec.rows = spec.rank > 0 && c.extents.back() % spec.vector == 0;
  choose_unroll(program, plan.count, device, &spec);
  const int64_t tile = int64_t{kThreads} * spec.vector * spec.unroll;
  // Room for the last tile's overrun, in 32-bit indices and in the division by multiplication.
  spec.wide = plan.count > INT32_MAX - tile;
  size_t bytes = 0;
  for (size_t k = 0; k < shapes.size(); ++k)
    bytes += size_of(program.inputs[k]) * static_cast<size_t>(shapes[k].size());
  for (size_t o = 0; o < program.outputs.size(); ++o)
    bytes += size_of(program.output_dtype(o)) * static_cast<size_t>(plan.count);
  spec.stream = bytes > device.l2_bytes;
  const int64_t blocks = (plan.count + tile - 1) / tile;
  require(blocks <= INT32_MAX, "a pointwise output of shape ", plan.shape.to_string(), " is too large for one launch");
  plan.blocks = static_cast<unsigned>(blocks);
  plan.params = make_params(program, c, plan.count, spec);
  return plan;
}

}  // namespace cuvil::jit
