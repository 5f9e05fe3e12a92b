// One step of LSTM, GRU or RNN cells, after the matrix products: gates, states and outputs.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"
#include "device/recurrent.h"

namespace cuvil {

constexpr int kMaxDirections = 2;

// Tensors of a node whose directions are computed side by side. G gates: LSTM 4 (input, output, forget, cell), GRU 3
// (update, reset, hidden), RNN 1.
struct RecurrentParams {
  DType dtype = DType::kUndefined;  // of every tensor but states of the compute type (f32; f64 for f64)
  int64_t directions = 1, seq = 0, batch = 0, hidden = 0;
  bool batch_major = false;           // X and Y begin with the batch instead of time
  bool reverse[kMaxDirections] = {};  // which directions run from the end
  CellFunction f[kMaxDirections][3] = {};
  float clip = 0;                    // gates' sums are kept within +-clip when above 0
  bool input_forget = false;         // LSTM: forget = 1 - input
  bool linear_before_reset = false;  // GRU
  const void* x = nullptr;           // X W^T: [directions, seq * batch in X's order, G * hidden]
  const void* r = nullptr;           // H R^T of this step: [directions, batch, G * hidden], see launch_gru_*
  const void* bias = nullptr;        // [directions, 2 * G * hidden], or null
  const void* peephole = nullptr;    // LSTM: [directions, 3 * hidden] (input, output, forget), or null
  const int32_t* lengths = nullptr;  // [batch], or null: all have `seq` steps
  int* out_of_range = nullptr;       // set to 1 by a length outside [0, seq], which is clamped
  void* h = nullptr;                 // [directions, batch, hidden]
  void* h_next = nullptr;            // where the step leaves H: `h` itself, but for launch_small_step
  void* c = nullptr;                 // LSTM: the same in the compute type
  void* y = nullptr;                 // [seq, directions, batch, hidden] or [batch, seq, directions, hidden], or null
  void* y_h = nullptr;               // [directions, batch, hidden] or [batch, directions, hidden], or null
  void* y_c = nullptr;
};

// States before the first step, from [directions, batch, hidden] (batch_major: [batch, directions, hidden]) or zeros
// when null; y_h and y_c get them too, which is the answer when there is no step.
cudaError_t launch_recurrent_init(const RecurrentParams& p, const void* initial_h, const void* initial_c,
                                  cudaStream_t stream);

// Step `step` of each sequence, counted in its own direction. A sequence that has ended keeps its state, and zeros
// become the rest of its Y.
cudaError_t launch_lstm_step(const RecurrentParams& p, int64_t step, cudaStream_t stream);
cudaError_t launch_rnn_step(const RecurrentParams& p, int64_t step, cudaStream_t stream);
// The same steps, and that of GRU with linear_before_reset, with their product in one kernel, for few sequences, which
// leave most of a product's tiles empty. `weights` is R, [directions, gates * hidden, hidden]; p.r is not used, and
// h_next is not h, as other units still read it.
constexpr int64_t kFewSequences = 4;
cudaError_t launch_small_step(const RecurrentParams& p, int64_t step, int gates, const void* weights,
                              cudaStream_t stream);
// GRU with linear_before_reset: r holds all gates.
cudaError_t launch_gru_step(const RecurrentParams& p, int64_t step, cudaStream_t stream);
// GRU without: r holds the update and reset gates, [directions, batch, 2 * hidden]. Leaves the update gate in `update`
// (compute type) and reset * H in `reset_h`, both [directions, batch, hidden]; then r is reset_h R_h^T,
// [directions, batch, hidden].
cudaError_t launch_gru_gates(const RecurrentParams& p, int64_t step, void* update, void* reset_h, cudaStream_t stream);
cudaError_t launch_gru_hidden(const RecurrentParams& p, int64_t step, const void* update, cudaStream_t stream);

}  // namespace cuvil
