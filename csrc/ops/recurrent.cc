// LSTM, GRU and RNN: the inputs' product for all steps at once, then for each step a product and a kernel of the gates,
// or one kernel of both.
#include "kernels/recurrent.cuh"

#include <utility>

#include "ops/gemm_engine.h"
#include "ops/index_guard.h"
#include "ops/recurrent_attr.h"

namespace cuvil {
namespace {

enum Input { kX, kW, kR, kBias, kLengths, kInitialH, kInitialC, kPeephole };
enum class Cell { kLstm, kGru, kRnn };

Cell cell_of(const NodeView& node) {
  return node.op_type() == "LSTM" ? Cell::kLstm : node.op_type() == "GRU" ? Cell::kGru : Cell::kRnn;
}

std::vector<std::string> default_activations(Cell cell) {
  if (cell == Cell::kLstm) return {"Sigmoid", "Tanh", "Tanh"};
  if (cell == Cell::kGru) return {"Sigmoid", "Tanh"};
  return {"Tanh"};
}

int gates_of(Cell cell) { return cell == Cell::kLstm ? 4 : cell == Cell::kGru ? 3 : 1; }

std::string supports(const NodeView& node) {
  const DType t = node.input_dtype(kX);
  if (std::string reason = gemm_dtype_reason(t, "input 0"); !reason.empty()) return reason;
  for (int i = 1; i < node.num_inputs(); ++i) {
    const DType wanted = i == kLengths ? DType::kI32 : t;
    if (node.has_input(i) && node.input_dtype(i) != wanted)
      return concat("input ", i, " is ", name_of(node.input_dtype(i)), "; ", name_of(wanted), " is required");
  }
  const int directions = directions_of(node);
  if (directions == 0) return concat("direction is ", node.get<std::string>("direction", ""));
  std::vector<CellFunction> ignored;
  return parse_cell_functions(node, directions, default_activations(cell_of(node)), &ignored);
}

class Recurrent : public Op {
 public:
  explicit Recurrent(const NodeView& node)
      : cell_(cell_of(node)), gates_(gates_of(cell_)), directions_(directions_of(node)) {
    std::vector<CellFunction> functions;
    const std::vector<std::string> defaults = default_activations(cell_);
    const std::string reason = parse_cell_functions(node, directions_, defaults, &functions);
    require(reason.empty(), reason);
    for (size_t i = 0; i < functions.size(); ++i) base_.f[i / defaults.size()][i % defaults.size()] = functions[i];
    base_.directions = directions_;
    base_.reverse[0] = node.get<std::string>("direction", "forward") == "reverse";
    base_.reverse[1] = true;
    base_.batch_major = node.get<int64_t>("layout", 0) != 0;
    base_.clip = node.get<float>("clip", 0.f);
    base_.input_forget = node.get<int64_t>("input_forget", 0) != 0;
    base_.linear_before_reset = node.get<int64_t>("linear_before_reset", 0) != 0;
  }

  void compute(OpContext& ctx) override {
    const Tensor x = ctx.input(kX), w = ctx.input(kW), r = ctx.input(kR);
    RecurrentParams p = base_;
    p.dtype = x.dtype;
    const int64_t width = set_shapes(p, x.shape, w.shape, r.shape);
    set_operands(ctx, p);
    set_outputs(ctx, p);
    const int64_t units = p.directions * p.batch * p.hidden;
    if (units == 0) return;
    p.h = p.h_next = ctx.scratch(static_cast<size_t>(units) * size_of(p.dtype));
    if (cell_ == Cell::kLstm) p.c = ctx.scratch(static_cast<size_t>(units) * state_size(p));
    CUVIL_CUDA(launch_recurrent_init(p, initial(ctx, p, kInitialH), initial(ctx, p, kInitialC), ctx.stream()));
    if (p.seq == 0) return;
    p.x = project(ctx, p, x, w, width);
    if (cell_ == Cell::kGru && !p.linear_before_reset)
      run_gru(ctx, p, r);
    else if (p.batch <= kFewSequences)
      run_small_steps(ctx, p, r);
    else
      run_steps(ctx, p, r);
  }

 private:
  // A product that is repeated each step, in one workspace.
  class StepProduct {
   public:
    // [directions, batch, hidden] times the rows [first, first + n) of each [gates * hidden, hidden].
    StepProduct(OpContext& ctx, const RecurrentParams& p, const Tensor& r, int gates, const void* h, int64_t first,
                int64_t n)
        : engine_(ctx.shared<GemmEngine>()), stream_(ctx.stream()) {
      GemmProblem g;
      g.dtype = p.dtype;
      g.m = p.batch, g.n = n, g.k = p.hidden;
      g.trans_b = true;
      g.batch = p.directions;
      g.stride_a = p.batch * p.hidden, g.stride_b = gates * p.hidden * p.hidden;
      g.tf32 = ctx.allow_tf32();
      operands_.a = h;
      operands_.b = r.as<char>() + first * p.hidden * static_cast<int64_t>(size_of(p.dtype));
      operands_.d = ctx.scratch(static_cast<size_t>(p.directions * p.batch * n) * size_of(p.dtype));
      plan_ = &engine_.plan(ctx, g, operands_);
      const size_t bytes = GemmEngine::plan_workspace(*plan_);
      workspace_ = bytes ? ctx.scratch(bytes) : nullptr;
    }
    const void* run() const {
      engine_.launch(*plan_, operands_, workspace_, stream_);
      return operands_.d;
    }

   private:
    GemmEngine& engine_;
    cudaStream_t stream_;
    GemmOperands operands_;
    const GemmPlan* plan_ = nullptr;
    void* workspace_ = nullptr;
  };

  static size_t state_size(const RecurrentParams& p) { return p.dtype == DType::kF64 ? 8 : 4; }

  // Returns the inputs' width.
  int64_t set_shapes(RecurrentParams& p, const Dims& x, const Dims& w, const Dims& r) const {
    require(x.rank() == 3, "X has shape ", x.to_string(), "; three dimensions are required");
    p.seq = x[p.batch_major ? 1 : 0], p.batch = x[p.batch_major ? 0 : 1];
    require(r.rank() == 3, "R has shape ", r.to_string(), "; three dimensions are required");
    p.hidden = r[2];
    const Dims expected_w{directions_, gates_ * p.hidden, x[2]}, expected_r{directions_, gates_ * p.hidden, p.hidden};
    require(w == expected_w, "W has shape ", w.to_string(), "; ", expected_w.to_string(), " is required");
    require(r == expected_r, "R has shape ", r.to_string(), "; ", expected_r.to_string(), " is required");
    return x[2];
  }

  static const void* optional(OpContext& ctx, int i, const char* what, const Dims& expected) {
    if (!ctx.has_input(i)) return nullptr;
    const Tensor t = ctx.input(i);
    require(t.shape == expected, what, " has shape ", t.shape.to_string(), "; ", expected.to_string(), " is required");
    return t.data;
  }

  void set_operands(OpContext& ctx, RecurrentParams& p) {
    p.out_of_range = guard_.arm("a value of sequence_lens", "took the nearest length that exists");
    p.bias = optional(ctx, kBias, "B", {directions_, 2 * gates_ * p.hidden});
    p.lengths = static_cast<const int32_t*>(optional(ctx, kLengths, "sequence_lens", {p.batch}));
    if (cell_ == Cell::kLstm) p.peephole = optional(ctx, kPeephole, "P", {directions_, 3 * p.hidden});
  }

  static Dims state_shape(const RecurrentParams& p) {
    return p.batch_major ? Dims{p.batch, p.directions, p.hidden} : Dims{p.directions, p.batch, p.hidden};
  }

  static const void* initial(OpContext& ctx, const RecurrentParams& p, int i) {
    return optional(ctx, i, i == kInitialH ? "initial_h" : "initial_c", state_shape(p));
  }

  void set_outputs(OpContext& ctx, RecurrentParams& p) const {
    const Dims y =
        p.batch_major ? Dims{p.batch, p.seq, p.directions, p.hidden} : Dims{p.seq, p.directions, p.batch, p.hidden};
    if (ctx.has_output(0)) p.y = ctx.output(0, y).data;
    if (ctx.has_output(1)) p.y_h = ctx.output(1, state_shape(p)).data;
    if (cell_ == Cell::kLstm && ctx.has_output(2)) p.y_c = ctx.output(2, state_shape(p)).data;
  }

  // X W^T of all steps and directions.
  const void* project(OpContext& ctx, const RecurrentParams& p, const Tensor& x, const Tensor& w, int64_t width) const {
    GemmProblem g;
    g.dtype = p.dtype;
    g.m = p.seq * p.batch, g.n = gates_ * p.hidden, g.k = width;
    g.trans_b = true;
    g.batch = directions_;
    g.stride_b = g.n * g.k;
    g.tf32 = ctx.allow_tf32();
    GemmOperands o;
    o.a = x.data, o.b = w.data;
    o.d = ctx.scratch(static_cast<size_t>(directions_ * g.m * g.n) * size_of(p.dtype));
    ctx.shared<GemmEngine>().run(ctx, g, o);
    return o.d;
  }

  void run_steps(OpContext& ctx, RecurrentParams& p, const Tensor& r) const {
    const StepProduct product(ctx, p, r, gates_, p.h, 0, gates_ * p.hidden);
    const auto launch = cell_ == Cell::kLstm  ? launch_lstm_step
                        : cell_ == Cell::kGru ? launch_gru_step
                                              : launch_rnn_step;
    for (int64_t step = 0; step < p.seq; ++step) {
      p.r = product.run();
      CUVIL_CUDA(launch(p, step, ctx.stream()));
    }
  }

  // H has two places that change roles each step: all units read the old one.
  void run_small_steps(OpContext& ctx, RecurrentParams& p, const Tensor& r) const {
    p.h_next = ctx.scratch(static_cast<size_t>(p.directions * p.batch * p.hidden) * size_of(p.dtype));
    for (int64_t step = 0; step < p.seq; ++step) {
      CUVIL_CUDA(launch_small_step(p, step, gates_, r.data, ctx.stream()));
      std::swap(p.h, p.h_next);
    }
  }

  // The hidden gate's product needs the reset gate, so there are two of them a step.
  void run_gru(OpContext& ctx, RecurrentParams& p, const Tensor& r) const {
    const size_t units = static_cast<size_t>(p.directions * p.batch * p.hidden);
    void* update = ctx.scratch(units * state_size(p));
    void* reset_h = ctx.scratch(units * size_of(p.dtype));
    const StepProduct gates(ctx, p, r, gates_, p.h, 0, 2 * p.hidden);
    const StepProduct hidden(ctx, p, r, gates_, reset_h, 2 * p.hidden, p.hidden);
    for (int64_t step = 0; step < p.seq; ++step) {
      p.r = gates.run();
      CUVIL_CUDA(launch_gru_gates(p, step, update, reset_h, ctx.stream()));
      p.r = hidden.run();
      CUVIL_CUDA(launch_gru_hidden(p, step, update, ctx.stream()));
    }
  }

  Cell cell_;
  int gates_, directions_;
  RecurrentParams base_;
  IndexGuard guard_;
};

// Version 1 of GRU and LSTM had an output_sequence attribute, which ONNX Runtime no longer runs.
OpEntry entry(const char* type) {
  return {.type = type, .since = 7, .supports = supports, .create = make_op<Recurrent>};
}

const Register lstm{entry("LSTM")};
const Register gru{entry("GRU")};
const Register rnn{entry("RNN")};

}  // namespace
}  // namespace cuvil
