// The packed weight of a node: made from the node's inputs when the session is built, or in each run from those that
// are not constant.
#pragma once

#include <array>
#include <functional>
#include <optional>

#include "kernels/int4_weight.cuh"
#include "ops/op.h"
#include "plan/group_order.h"

namespace cuvil {

// How an op's tensors hold a weight of `rows` (columns of the product) by `depth`. Strides in codes and values.
struct Int4Source {
  int bits = 4;  // of a code, 2, 4 or 8
  int flip = 0;  // see device::CodeTable
  int zero = 0;  // after the flip, where there are no zero points
  int64_t rows = 0, depth = 0, group_size = 0, groups = 0;
  int64_t code_row = 0, code_depth = 0, value_row = 0, value_group = 0, zero_row = 0, zero_group = 0;
  bool float_zeros = false;
  int64_t first_code = 0, first_value = 0;  // of a matrix among others in one tensor
  DType dtype = DType::kUndefined;
};

class Int4Matrix {
 public:
  enum Part { kCodes, kScales, kZeros, kOffsets, kParts };

  // `group_of`: the group of each place where they do not follow each other.
  explicit Int4Matrix(const Int4Source& source, const std::vector<int32_t>* group_of = nullptr);

  // Packs a constant input, which may be freed once the stream has got so far. False when it cannot be packed before
  // another one.
  bool keep(Part part, const void* data, cudaStream_t stream);

  // The whole weight; `data_of` gives the inputs that were not kept, null for absent ones.
  Int4Weight weight(OpContext& ctx, const std::function<const void*(Part)>& data_of) const;

  // Places of the packed depth in the other operand, null when they are the same. Device memory.
  const int32_t* order() const { return static_cast<const int32_t*>(order_.get()); }
  int64_t packed_depth() const { return shape_.depth; }
  // See Int4GemmParams::counters; for this many tiles.
  unsigned* counters() const { return static_cast<unsigned*>(counters_.get()); }
  int64_t tiles() const { return tiles_; }

 private:
  using Memory = std::function<void*(size_t)>;
  void pack(Part part, const void* data, const Memory& memory, Int4Weight* weight, cudaStream_t stream) const;

  Int4Source source_;
  Int4Weight shape_;  // with the parts that were kept
  std::array<bool, kParts> kept_{};
  std::vector<DeviceBuffer> buffers_;
  DeviceBuffer order_, groups_, counters_;
  int64_t tiles_ = 0;
};

// The left operand, [m, k] of `dtype`, in the order of the weight: itself, or a copy in scratch memory.
const void* int4_operand(OpContext& ctx, const Int4Matrix& matrix, const void* x, int64_t m, int64_t k, DType dtype);

}  // namespace cuvil
