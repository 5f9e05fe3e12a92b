#include "ops/int4_matrix.h"

#include <bit>

namespace cuvil {
namespace {

constexpr int kSmallestGroup = device::kStepDepth;
// Column tiles of a launch, at most: a longer product is run in several. The rows' tiles are of 128 at least.
constexpr int64_t kColumnTiles = 32, kRowsOfTile = 128;

DeviceBuffer upload(const std::vector<int32_t>& values) {
  return DeviceBuffer(values.data(), values.size() * sizeof(int32_t));
}

// Groups that are brought together, or that are no power of two. The longest power that wastes little.
GroupOrder reorder(const Int4Source& s, const std::vector<int32_t>* group_of) {
  std::vector<int32_t> regular;
  if (!group_of) {
    for (int64_t i = 0; i < s.depth; ++i) regular.push_back(static_cast<int32_t>(i / s.group_size));
    group_of = &regular;
  }
  const int64_t longest = std::bit_floor(static_cast<uint64_t>(std::min<int64_t>(s.group_size, 256)));
  for (int64_t size = std::max<int64_t>(longest, kSmallestGroup);; size /= 2) {
    GroupOrder order = order_by_group(*group_of, s.groups, static_cast<int>(size));
    if (size == kSmallestGroup || static_cast<int64_t>(order.places.size()) * 16 <= s.depth * 17) return order;
  }
}

}  // namespace

Int4Matrix::Int4Matrix(const Int4Source& source, const std::vector<int32_t>* group_of) : source_(source) {
  const Int4Source& s = source_;
  require(s.rows <= INT32_MAX / 2 && s.depth <= INT32_MAX / 2, "a weight of ", s.depth, " by ", s.rows,
          " is too large");
  shape_.bits = s.bits == 8 ? 8 : 4;
  shape_.dtype = s.dtype;
  shape_.zero = s.zero;
  shape_.rows = static_cast<int>(s.rows);
  shape_.depth = static_cast<int>(s.depth);
  shape_.groups = static_cast<int>(s.groups);
  const bool one_group = s.groups <= 1;
  const bool power = s.group_size >= device::kStepDepth && std::has_single_bit(static_cast<uint64_t>(s.group_size));
  if (group_of || (!one_group && !power)) {
    const GroupOrder order = reorder(s, group_of);
    require(order.places.size() <= INT32_MAX / 2, "a weight of ", s.depth, " by ", s.rows, " is too large");
    shape_.depth = static_cast<int>(order.places.size());
    shape_.groups = static_cast<int>(order.groups.size());
    shape_.group_shift = std::countr_zero(static_cast<unsigned>(order.size));
    order_ = upload(order.places);
    groups_ = upload(order.groups);
  } else {
    shape_.group_shift = one_group ? 30 : std::countr_zero(static_cast<uint64_t>(s.group_size));
  }
  tiles_ = (s.rows + kRowsOfTile - 1) / kRowsOfTile * kColumnTiles;
  counters_ = DeviceBuffer(static_cast<size_t>(tiles_) * sizeof(unsigned));
  CUVIL_CUDA(cudaMemset(counters_.get(), 0, counters_.bytes()));
  CUVIL_CUDA(cudaStreamSynchronize(nullptr));  // before any stream reads them
}

void Int4Matrix::pack(Part part, const void* data, const Memory& memory, Int4Weight* w, cudaStream_t stream) const {
  const Int4Source& s = source_;
  const auto* groups = static_cast<const int32_t*>(groups_.get());
  const size_t values = w->group_values(), value_bytes = values * size_of(s.dtype);
  const auto at = [&](const void* base) {
    return static_cast<const char*>(base) + s.first_value * static_cast<int64_t>(size_of(s.dtype));
  };
  switch (part) {
    case kCodes: {
      void* packed = memory(w->code_bytes());
      w->codes = static_cast<const uint4*>(packed);
      CUVIL_CUDA(launch_pack_codes(
          {{static_cast<const uint8_t*>(data), s.bits, s.flip, s.code_row, s.code_depth, s.first_code}, order(), *w},
          stream));
      break;
    }
    case kScales:
    case kOffsets: {
      void* packed = memory(value_bytes);
      CUVIL_CUDA(launch_pack_groups({at(data), s.value_row, s.value_group, groups, *w, packed}, stream));
      (part == kScales ? w->scales : w->offsets) = packed;
      break;
    }
    case kZeros: {
      auto* packed = static_cast<uint8_t*>(memory(values));
      if (s.float_zeros) {
        void* offsets = memory(value_bytes);
        CUVIL_CUDA(launch_pack_float_zeros({at(data), s.zero_row, s.zero_group, groups, *w, packed, offsets}, stream));
        w->offsets = offsets;
      } else {
        CUVIL_CUDA(launch_pack_zeros(
            {{static_cast<const uint8_t*>(data), s.bits, s.flip, s.zero_row, s.zero_group, s.first_value},
             groups,
             *w,
             packed},
            stream));
      }
      w->zeros = packed;
      break;
    }
    case kParts:
      break;
  }
}

bool Int4Matrix::keep(Part part, const void* data, cudaStream_t stream) {
  if (part == kZeros && source_.float_zeros && !kept_[kScales]) return false;
  const Memory owned = [this](size_t bytes) { return buffers_.emplace_back(bytes).get(); };
  pack(part, data, owned, &shape_, stream);
  return kept_[part] = true;
}

Int4Weight Int4Matrix::weight(OpContext& ctx, const std::function<const void*(Part)>& data_of) const {
  Int4Weight w = shape_;
  for (const Part part : {kCodes, kScales, kZeros, kOffsets}) {  // float zero points need the scales
    if (kept_[part]) continue;
    if (const void* data = data_of(part))
      pack(part, data, [&](size_t bytes) { return ctx.scratch(bytes); }, &w, ctx.stream());
  }
  return w;
}

const void* int4_operand(OpContext& ctx, const Int4Matrix& matrix, const void* x, int64_t m, int64_t k, DType dtype) {
  if (!matrix.order()) return x;
  OrderColumnsParams p;
  p.x = x;
  p.element_bytes = static_cast<int>(size_of(dtype));
  p.y = ctx.scratch(static_cast<size_t>(m * matrix.packed_depth()) * size_of(dtype));
  p.order = matrix.order();
  p.rows = m, p.columns = k, p.ordered = matrix.packed_depth();
  CUVIL_CUDA(launch_order_columns(p, ctx.stream()));
  return p.y;
}

}  // namespace cuvil
