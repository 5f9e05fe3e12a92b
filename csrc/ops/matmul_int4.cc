// cuvil::MatMulInt4: Y = act(A W + bias + Z) with W = (B - zero_points) * scales + offsets, of 4 or 8 bits.
#include "generated/ops.inc"
#include "ops/activation_attr.h"
#include "ops/bias_row.h"
#include "ops/int4_engine.h"
#include "ops/int4_matrix.h"
#include "plan/matmul_shape.h"

namespace cuvil {
namespace {

using Spec = spec::MatMulInt4;
using In = Spec::In;

bool is_code(DType t) { return t == DType::kI4 || t == DType::kU4 || t == DType::kI8 || t == DType::kU8; }
bool is_signed(DType t) { return t == DType::kI4 || t == DType::kI8; }

std::string supports(const NodeView& node) {
  const DType t = node.input_dtype(In::A), code = node.input_dtype(In::B);
  if (t != DType::kF32 && t != DType::kF16 && t != DType::kBF16)
    return concat("input A is ", name_of(t), "; f32, f16 or bf16 is required");
  if (!is_code(code)) return concat("input B is ", name_of(code), "; i4, u4, i8 or u8 is required");
  for (const int i : {int{In::scales}, int{In::offsets}, int{In::bias}, int{In::Z}})
    if (node.has_input(i) && node.input_dtype(i) != t)
      return concat("input ", i, " is ", name_of(node.input_dtype(i)), ", input A ", name_of(t));
  if (node.has_input(In::zero_points) && node.input_dtype(In::zero_points) != code)
    return concat("the zero points are ", name_of(node.input_dtype(In::zero_points)), ", the codes ", name_of(code));
  const std::optional<Dims> b = node.input_shape(In::B);
  if (!b || (b->rank() != 2 && b->rank() != 3)) return "the shape of B is not known to be [K, N] or [E, K, N]";
  for (const int64_t d : *b)
    if (d < 0) return concat("the shape of B, ", b->to_string(), ", is not static");
  if (node.get<int64_t>(Spec::Attr::block_size, 0) < 0) return "block_size is negative";
  ActivationParams activation;
  return parse_activation(node, &activation);
}

class MatMulInt4 : public Op {
 public:
  explicit MatMulInt4(const NodeView& node)
      : shape_(node.input_shape(In::B).value()),
        dtype_(node.input_dtype(In::A)),
        activation_(activation_of(node)),
        group_(node.get<int64_t>(Spec::Attr::block_size, 0)) {
    const int rank = shape_.rank();
    const int64_t k = shape_[rank - 2], n = shape_[rank - 1], count = shape_.product(0, rank - 2);
    const DType code = node.input_dtype(In::B);
    Int4Source s;
    s.bits = code == DType::kI4 || code == DType::kU4 ? 4 : 8;
    s.flip = s.zero = is_signed(code) ? 1 << (s.bits - 1) : 0;
    s.rows = n, s.depth = k, s.group_size = group_ ? group_ : k, s.groups = groups();
    s.code_row = s.value_row = s.zero_row = 1;
    s.code_depth = s.value_group = s.zero_group = n;
    s.dtype = dtype_;
    for (int64_t e = 0; e < count; ++e) {
      s.first_code = e * k * n, s.first_value = e * groups() * n;
      matrices_.emplace_back(s);
    }
  }

  bool prepack(int input, const Tensor& t, cudaStream_t stream) override {
    const std::optional<Int4Matrix::Part> part = part_of(input);
    if (!part) return false;
    check(input, t);
    for (Int4Matrix& m : matrices_) m.keep(*part, t.data, stream);
    return true;
  }

  void compute(OpContext& ctx) override {
    const Tensor a = ctx.input(In::A);
    const MatMulShape s = matmul_shape(a.shape, shape_, false, false);
    const Tensor y = ctx.output(0, s.output);
    if (y.size() == 0) return;
    const char* z = nullptr;
    if (ctx.has_input(In::Z)) {
      const Tensor t = ctx.input(In::Z);
      require(t.shape == y.shape, "Z has shape ", t.shape.to_string(), ", the product ", y.shape.to_string());
      z = t.as<char>();
    }
    Int4Product p;
    p.m = s.m;
    p.activation = activation_;
    p.bias = bias_row(ctx, In::bias, s.n);
    p.constant = true;
    const auto data_of = [&](Int4Matrix::Part part) -> const void* {
      for (const int i : {int{In::B}, int{In::scales}, int{In::zero_points}, int{In::offsets}})
        if (part_of(i) == part && ctx.has_input(i)) {
          const Tensor t = ctx.input(i);
          check(i, t);
          p.constant = false;
          return t.data;
        }
      return nullptr;
    };
    const auto element = static_cast<int64_t>(size_of(dtype_));
    for (const MatMulShape::Call& call : s.calls)
      for (int64_t i = 0; i < s.batch; ++i) {
        const int64_t from = call.b + i * s.stride_b, to = (call.d + i * s.m * s.n) * element;
        const Int4Matrix& matrix = matrices_[static_cast<size_t>(s.k > 0 ? from / (s.k * s.n) : 0)];
        p.weight = matrix.weight(ctx, data_of);
        p.x = int4_operand(ctx, matrix, a.as<char>() + (call.a + i * s.stride_a) * element, s.m, s.k, dtype_);
        p.y = y.as<char>() + to;
        p.residual = z ? z + to : nullptr;
        p.counters = matrix.counters(), p.tiles = matrix.tiles();
        ctx.shared<Int4Engine>().run(ctx, p);
      }
  }

 private:
  int64_t groups() const {
    const int64_t k = shape_[shape_.rank() - 2];
    return group_ ? (k + group_ - 1) / group_ : 1;
  }

  static std::optional<Int4Matrix::Part> part_of(int input) {
    switch (input) {
      case In::B:
        return Int4Matrix::kCodes;
      case In::scales:
        return Int4Matrix::kScales;
      case In::zero_points:
        return Int4Matrix::kZeros;
      case In::offsets:
        return Int4Matrix::kOffsets;
      default:
        return std::nullopt;
    }
  }

  void check(int input, const Tensor& t) const {
    Dims expected = shape_;
    if (input != In::B) {
      if (group_)
        expected[shape_.rank() - 2] = groups();
      else
        expected = {shape_[shape_.rank() - 1]};
      require(group_ || shape_.rank() == 2, "a weight of rank 3 needs groups (block_size above 0)");
    }
    require(t.shape == expected, "input ", input, " has shape ", t.shape.to_string(), "; ", expected.to_string(),
            " is required for B of ", shape_.to_string(), " and block_size ", group_);
  }

  Dims shape_;
  DType dtype_;
  ActivationParams activation_;
  int64_t group_;
  std::vector<Int4Matrix> matrices_;
};

const Register matmul_int4{
    {.domain = spec::kDomain, .type = Spec::kName, .supports = supports, .create = make_op<MatMulInt4>}};

}  // namespace
}  // namespace cuvil
