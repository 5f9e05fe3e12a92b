// Matrix products of 8-bit integers: MatMulInteger, QLinearMatMul, and com.microsoft's MatMulIntegerToFloat and
// DynamicQuantizeMatMul.
#include "kernels/quantize.cuh"
#include "ops/int_gemm_engine.h"
#include "ops/int_operand.h"
#include "plan/matmul_shape.h"

namespace cuvil {
namespace {

// Where an op keeps its inputs; -1 where it has none.
struct Signature {
  int b, a_scale, a_zero, b_scale, b_zero, y_scale, y_zero, bias;
  bool quantizes_a = false;
};

Signature signature_of(const std::string& op) {
  if (op == "MatMulInteger") return {1, -1, 2, -1, 3, -1, -1, -1};
  if (op == "QLinearMatMul") return {3, 1, 2, 4, 5, 6, 7, -1};
  if (op == "MatMulIntegerToFloat") return {1, 2, 4, 3, 5, -1, -1, 6};
  return {1, -1, -1, 2, 3, -1, -1, 4, true};  // DynamicQuantizeMatMul
}

std::string supports(const NodeView& node) {
  const Signature at = signature_of(node.op_type());
  if (at.quantizes_a && node.input_dtype(0) != DType::kF32)
    return concat("input 0 is ", name_of(node.input_dtype(0)), "; f32 is required");
  for (int i : {at.quantizes_a ? -1 : 0, at.b, at.a_zero, at.b_zero})
    if (std::string reason = i < 0 ? "" : int8_reason(node, i); !reason.empty()) return reason;
  for (int i : {at.a_scale, at.b_scale, at.y_scale, at.bias})
    if (std::string reason = i < 0 ? "" : scale_reason(node, i); !reason.empty()) return reason;
  const DType y = node.output_dtype(0);
  const bool fits = at.y_scale > 0   ? is_int8(y)
                    : at.b_scale > 0 ? y == DType::kF32 || y == DType::kF16
                                     : y == DType::kI32;
  if (!fits) return concat("output 0 is ", name_of(y), ", which is not served");
  if (at.y_zero > 0 && node.input_dtype(at.y_zero) != y)
    return concat("input ", at.y_zero, " is ", name_of(node.input_dtype(at.y_zero)), " and output 0 is ", name_of(y));
  return "";
}

class IntMatMul : public Op {
 public:
  explicit IntMatMul(const NodeView& node) : at_(signature_of(node.op_type())), y_dtype_(node.output_dtype(0)) {}

  // Keeps B as packed rows.
  bool prepack(int input, const Tensor& weight, cudaStream_t stream) override {
    if (input != at_.b || weight.shape.rank() < 2) return false;
    right_ = pack_right(weight, stream, [&](size_t bytes) {
      buffers_.emplace_back(bytes);
      return buffers_.back().get();
    });
    is_packed_ = true;
    return true;
  }

  void compute(OpContext& ctx) override {
    Tensor a = ctx.input(0);
    const Right b =
        is_packed_ ? right_ : pack_right(ctx.input(at_.b), ctx.stream(), [&](size_t n) { return ctx.scratch(n); });
    const MatMulShape s = matmul_shape(a.shape, b.shape, false, false);
    const Tensor y = ctx.output(0, s.output);
    if (y.size() == 0) return;

    IntEpilogueParams e;
    e.y_dtype = y_dtype_;
    const int64_t rows = a.shape.rank() == 1 ? 1 : a.shape[a.shape.rank() - 2];
    e.row_zero = operand(ctx, at_.a_zero, "the zero point of A", rows);
    e.column_zero = operand(ctx, at_.b_zero, "the zero point of B", s.n);
    e.row_scale = operand(ctx, at_.a_scale, "the scale of A", rows);
    e.column_scale = operand(ctx, at_.b_scale, "the scale of B", s.n);
    e.y_scale = operand(ctx, at_.y_scale, "the scale of Y", 1);
    e.y_zero = operand(ctx, at_.y_zero, "the zero point of Y", 1);
    e.bias = operand(ctx, at_.bias, "the bias", s.n);
    require(!e.bias.data || e.bias.count == s.n, "the bias holds one value for ", s.n, " columns");
    if (at_.quantizes_a) a = quantized(ctx, a, e);

    const int64_t k = s.k, kp = packed_k(k), a_rows = a.shape.product(0, a.shape.rank() - 1);
    PackRowsParams left{.x = a.data, .is_unsigned = a.dtype == DType::kU8, .rows = a_rows, .k = k};
    left.y = static_cast<int8_t*>(ctx.scratch(static_cast<size_t>(a_rows * kp)));
    left.sums = static_cast<int32_t*>(ctx.scratch(static_cast<size_t>(a_rows) * sizeof(int32_t)));
    CUVIL_CUDA(launch_pack_rows(left, ctx.stream()));

    const int64_t padded = padded_columns(s.n);
    IntGemmParams g{.m = s.m, .n = padded, .kp = kp, .batch = s.batch};
    g.d = static_cast<int32_t*>(ctx.scratch(static_cast<size_t>(s.batch * s.m * padded) * sizeof(int32_t)));
    // Strides and offsets of matmul_shape count elements of the operands; here they count packed rows.
    const auto a_row = [&](int64_t element) { return k ? element / k : 0; };
    const auto b_row = [&](int64_t element) { return k ? element / (k * s.n) * padded : 0; };
    g.stride_a = a_row(s.stride_a) * kp, g.stride_b = b_row(s.stride_b) * kp;
    e.acc = g.d;
    e.row_sums_stride = a_row(s.stride_a), e.column_sums_stride = b_row(s.stride_b);
    e.batch = s.batch, e.m = s.m, e.n = s.n, e.ld = padded, e.k = k;
    e.rows_unsigned = left.is_unsigned, e.columns_unsigned = b.is_unsigned;
    for (const MatMulShape::Call& call : s.calls) {
      g.a = left.y + a_row(call.a) * kp, g.b = b.data + b_row(call.b) * kp;
      ctx.shared<IntGemmEngine>().run(ctx, g);
      e.row_sums = left.sums + a_row(call.a), e.column_sums = b.sums + b_row(call.b);
      e.y = y.as<char>() + call.d * static_cast<int64_t>(size_of(y_dtype_));
      CUVIL_CUDA(launch_int_epilogue(e, ctx.stream()));
    }
  }

 private:
  // B as packed rows: [matrices, padded n, kp] and a sum each.
  struct Right {
    int8_t* data = nullptr;
    int32_t* sums = nullptr;
    bool is_unsigned = false;
    Dims shape;
  };

  template <typename Allocate>
  static Right pack_right(const Tensor& b, cudaStream_t stream, const Allocate& allocate) {
    const int rank = b.shape.rank();
    require(rank >= 1, "B is a scalar; a vector or matrices are required");
    PackColumnsParams p{.x = b.data, .is_unsigned = b.dtype == DType::kU8};
    p.k = b.shape[rank == 1 ? 0 : rank - 2], p.n = rank == 1 ? 1 : b.shape[rank - 1];
    p.batch = b.shape.product(0, rank > 2 ? rank - 2 : 0);
    p.padded_n = padded_columns(p.n);
    const int64_t packed_rows = p.batch * p.padded_n;
    p.y = static_cast<int8_t*>(allocate(static_cast<size_t>(packed_rows * packed_k(p.k))));
    p.sums = static_cast<int32_t*>(allocate(static_cast<size_t>(packed_rows) * sizeof(int32_t)));
    CUVIL_CUDA(launch_pack_columns(p, stream));
    return {p.y, p.sums, p.is_unsigned, b.shape};
  }

  // A as DynamicQuantizeLinear gives it; its scale and zero point go into `e`.
  static Tensor quantized(OpContext& ctx, const Tensor& a, IntEpilogueParams& e) {
    Tensor q{.data = ctx.scratch(static_cast<size_t>(a.size())), .dtype = DType::kU8, .shape = a.shape};
    // Two places 256 bytes apart: scratch is aligned.
    DynamicRangeParams r{.x = a.as<float>(), .count = a.size()};
    r.partial = static_cast<float*>(ctx.scratch(kRangeBlocks * 2 * sizeof(float)));
    r.scale = static_cast<float*>(ctx.scratch(sizeof(float)));
    r.zero_point = static_cast<uint8_t*>(ctx.scratch(sizeof(uint8_t)));
    e.row_scale = {r.scale, DType::kF32, 1};
    e.row_zero = {r.zero_point, DType::kU8, 1};
    if (a.size() == 0) {  // no range: nothing is multiplied, and the bias is the answer
      e.row_scale = {}, e.row_zero = {};
      return q;
    }
    CUVIL_CUDA(launch_dynamic_range(r, ctx.stream()));
    QuantizeParams p;
    p.x = a.data, p.scale = r.scale, p.zero_point = r.zero_point, p.y = q.data;
    p.x_dtype = p.scale_dtype = DType::kF32, p.y_dtype = DType::kU8;
    p.layout.inner = a.size();
    CUVIL_CUDA(launch_quantize(p, ctx.stream()));
    return q;
  }

  Signature at_;
  DType y_dtype_;
  Right right_;
  std::vector<DeviceBuffer> buffers_;
  bool is_packed_ = false;
};

OpEntry entry(const char* domain, const char* type, int since) {
  return {.domain = domain, .type = type, .since = since, .supports = supports, .create = make_op<IntMatMul>};
}

const Register matmul_integer{entry("", "MatMulInteger", 10)};
const Register qlinear_matmul{entry("", "QLinearMatMul", 10)};
const Register to_float{entry("com.microsoft", "MatMulIntegerToFloat", 1)};
const Register dynamic{entry("com.microsoft", "DynamicQuantizeMatMul", 1)};

}  // namespace
}  // namespace cuvil
