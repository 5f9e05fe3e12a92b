// com.microsoft MatMulNBits: a product with a weight of 2, 4 or 8 bits in blocks.
#include <bit>

#include "ops/int4_engine.h"
#include "ops/int4_matrix.h"

namespace cuvil {
namespace {

enum Input { kA, kB, kScales, kZeroPoints, kGroupIndex, kBias };

struct Attributes {
  int64_t k, n, bits, block;

  explicit Attributes(const NodeView& node)
      : k(node.get<int64_t>("K", 0)),
        n(node.get<int64_t>("N", 0)),
        bits(node.get<int64_t>("bits", 4)),
        block(node.get<int64_t>("block_size", 0)) {}
  int64_t blocks() const { return (k + block - 1) / block; }
  int64_t zero_bytes() const { return (blocks() * bits + 7) / 8; }  // of a column
};

std::string supports(const NodeView& node) {
  const DType t = node.input_dtype(kA);
  if (t != DType::kF32 && t != DType::kF16 && t != DType::kBF16)
    return concat("input 0 is ", name_of(t), "; f32, f16 or bf16 is required");
  if (node.input_dtype(kB) != DType::kU8) return concat("input 1 is ", name_of(node.input_dtype(kB)), ", not u8");
  for (const int i : {kScales, kBias})
    if (node.has_input(i) && node.input_dtype(i) != t)
      return concat("input ", i, " is ", name_of(node.input_dtype(i)), ", input 0 ", name_of(t));
  const DType zero = node.input_dtype(kZeroPoints);
  if (node.has_input(kZeroPoints) && zero != DType::kU8 && zero != t)
    return concat("input 3 is ", name_of(zero), "; u8 or ", name_of(t), " is required");
  const Attributes a(node);
  if (a.bits != 2 && a.bits != 4 && a.bits != 8) return concat("bits is ", a.bits, "; 2, 4 or 8 is required");
  if (a.block < 16 || !std::has_single_bit(static_cast<uint64_t>(a.block)))
    return concat("block_size is ", a.block, "; a power of two from 16 on is required");
  if (a.k < 1 || a.n < 1) return concat("K is ", a.k, " and N ", a.n);
  if (node.get<int64_t>("weight_prepacked", 0) != 0) return "the weight is packed for another provider";
  if (node.has_input(kGroupIndex) && !node.constant_input(kGroupIndex)) return "g_idx is no initializer";
  return "";
}

class MatMulNBits : public Op {
 public:
  explicit MatMulNBits(const NodeView& node)
      : attributes_(node), dtype_(node.input_dtype(kA)), float_zeros_(node.input_dtype(kZeroPoints) == dtype_) {
    const Attributes& a = attributes_;
    Int4Source s;
    s.bits = static_cast<int>(a.bits);
    s.zero = 1 << (a.bits - 1);
    s.rows = a.n, s.depth = a.k, s.group_size = a.block, s.groups = a.blocks();
    s.code_row = a.blocks() * a.block, s.code_depth = 1;
    s.value_row = a.blocks(), s.value_group = 1;
    s.zero_row = float_zeros_ ? a.blocks() : a.zero_bytes() * 8 / a.bits, s.zero_group = 1;
    s.float_zeros = float_zeros_;
    s.dtype = dtype_;
    const std::vector<int32_t> group_of = group_index(node);
    matrix_.emplace(s, group_of.empty() ? nullptr : &group_of);
  }

  bool prepack(int input, const Tensor& t, cudaStream_t stream) override {
    const int part = part_of(input);
    if (part < 0) return false;
    check(input, t);
    return matrix_->keep(static_cast<Int4Matrix::Part>(part), t.data, stream);
  }

  void compute(OpContext& ctx) override {
    const Attributes& at = attributes_;
    const Tensor a = ctx.input(kA);
    const int rank = a.shape.rank();
    require(rank >= 1 && a.shape[rank - 1] == at.k, "A has shape ", a.shape.to_string(),
            ", whose last dimension is not K = ", at.k);
    Dims shape = a.shape;
    shape[rank - 1] = at.n;
    const Tensor y = ctx.output(0, shape);
    Int4Product p;
    p.m = a.shape.product(0, rank - 1);
    if (p.m == 0) return;
    bool constant = true;
    p.weight = matrix_->weight(ctx, [&](Int4Matrix::Part part) -> const void* {
      for (const int i : {kB, kScales, kZeroPoints})
        if (part_of(i) == part && ctx.has_input(i)) {
          const Tensor t = ctx.input(i);
          check(i, t);
          constant = false;
          return t.data;
        }
      return nullptr;
    });
    p.constant = constant;
    p.x = int4_operand(ctx, *matrix_, a.data, p.m, at.k, dtype_);
    if (ctx.has_input(kBias)) {
      const Tensor bias = ctx.input(kBias);
      require(bias.size() == at.n, "bias has shape ", bias.shape.to_string(), "; [", at.n, "] is required");
      p.bias = bias.data;
    }
    p.y = y.data;
    p.counters = matrix_->counters(), p.tiles = matrix_->tiles();
    ctx.shared<Int4Engine>().run(ctx, p);
  }

 private:
  static int part_of(int input) {
    switch (input) {
      case kB:
        return Int4Matrix::kCodes;
      case kScales:
        return Int4Matrix::kScales;
      case kZeroPoints:
        return Int4Matrix::kZeros;
      default:
        return -1;
    }
  }

  void check(int input, const Tensor& t) const {
    const Attributes& a = attributes_;
    const int64_t blocks = a.n * a.blocks();
    const int64_t expected = input == kB                             ? blocks * a.block * a.bits / 8
                             : input == kZeroPoints && !float_zeros_ ? a.n * a.zero_bytes()
                                                                     : blocks;
    require(t.size() == expected, "input ", input, " has shape ", t.shape.to_string(), "; ", expected,
            " elements are required for K = ", a.k, ", N = ", a.n, ", ", a.bits, " bits and blocks of ", a.block);
  }

  // The block of each of the K places; empty where that is the usual one.
  std::vector<int32_t> group_index(const NodeView& node) const {
    if (!node.has_input(kGroupIndex)) return {};
    const std::optional<Tensor> t = node.constant_input(kGroupIndex);
    const int64_t k = attributes_.k;
    require(t && t->dtype == DType::kI32 && t->size() >= k, "g_idx must be an initializer of ", k, " int32");
    const std::vector<int32_t> groups(t->as<int32_t>(), t->as<int32_t>() + k);
    bool usual = true;
    for (int64_t i = 0; i < k; ++i) usual = usual && groups[static_cast<size_t>(i)] == i / attributes_.block;
    return usual ? std::vector<int32_t>() : groups;
  }

  Attributes attributes_;
  DType dtype_;
  bool float_zeros_;
  std::optional<Int4Matrix> matrix_;
};

const Register matmul_nbits{{.domain = "com.microsoft",
                             .type = "MatMulNBits",
                             .supports = supports,
                             .create = make_op<MatMulNBits>,
                             .cpu_inputs = {kGroupIndex}}};

}  // namespace
}  // namespace cuvil
