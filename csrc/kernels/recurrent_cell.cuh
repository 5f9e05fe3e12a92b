// What the kernels of recurrent cells share: a thread's unit, activations, and the cells themselves.
#pragma once

#include "device/activation.cuh"
#include "device/vec.cuh"
#include "kernels/recurrent.cuh"

namespace cuvil::device {

template <typename C>
__device__ __forceinline__ C apply(CellFunction f, C x) {
  const C a = C(f.alpha), b = C(f.beta);
  switch (f.kind) {
    case CellActivation::kSigmoid:
      return sigmoid(x);
    case CellActivation::kTanh:
      return tanh(x);
    case CellActivation::kRelu:
      return x < C(0) ? C(0) : x;
    case CellActivation::kAffine:
      return a * x + b;
    case CellActivation::kLeakyRelu:
      return x < C(0) ? a * x : x;
    case CellActivation::kThresholdedRelu:
      return x > a ? x : C(0);
    case CellActivation::kScaledTanh:
      return a * tanh(b * x);
    case CellActivation::kHardSigmoid:
      return clip(a * x + b, C(0), C(1));
    case CellActivation::kElu:
      return x < C(0) ? a * expm1(x) : x;
    case CellActivation::kSoftsign:
      return x / (C(1) + fabs(x));
    case CellActivation::kSoftplus:
      return softplus(x);
  }
  return x;
}

// One unit of one sequence in one direction: a thread's place.
template <typename T>
struct Unit {
  using C = Compute<T>;
  const RecurrentParams& p;
  int64_t direction, sequence, j;
  int64_t state;  // index into the states
  int64_t time;   // of X and Y at this step
  bool active;    // the sequence has this step

  __device__ Unit(const RecurrentParams& params, int64_t i, int64_t step) : p(params), state(i) {
    j = i % p.hidden;
    sequence = i / p.hidden % p.batch;
    direction = i / p.hidden / p.batch;
    int64_t length = p.lengths ? p.lengths[sequence] : p.seq;
    if (length < 0 || length > p.seq) {
      *p.out_of_range = 1;
      length = length < 0 ? 0 : p.seq;
    }
    active = step < length;
    time = active && p.reverse[direction] ? length - 1 - step : step;
  }
  __device__ C bias(int gates, int k) const {
    if (!p.bias) return C(0);
    const T* b = static_cast<const T*>(p.bias) + direction * 2 * gates * p.hidden + j;
    return to_compute(b[k * p.hidden]) + to_compute(b[(gates + k) * p.hidden]);
  }
  // The part of the bias that belongs to the recurrent product, or to the input's.
  __device__ C bias_half(int gates, int k, bool recurrent) const {
    if (!p.bias) return C(0);
    const T* b = static_cast<const T*>(p.bias) + direction * 2 * gates * p.hidden + j;
    return to_compute(b[(recurrent ? gates + k : k) * p.hidden]);
  }
  __device__ C input(int gates, int k) const {
    const int64_t row = p.batch_major ? sequence * p.seq + time : time * p.batch + sequence;
    return to_compute(static_cast<const T*>(p.x)[((direction * p.seq * p.batch + row) * gates + k) * p.hidden + j]);
  }
  // Gate k of r, which holds `gates` of them.
  __device__ C recurrent(int gates, int k) const {
    return to_compute(static_cast<const T*>(p.r)[((direction * p.batch + sequence) * gates + k) * p.hidden + j]);
  }
  __device__ C clipped(C x) const { return p.clip > 0 ? clip(x, -C(p.clip), C(p.clip)) : x; }
  __device__ C function(int k, C x) const { return apply(p.f[direction][k], x); }
  __device__ C h() const { return to_compute(static_cast<const T*>(p.h)[state]); }

  __device__ int64_t last_place() const {
    return p.batch_major ? (sequence * p.directions + direction) * p.hidden + j : state;
  }
  // Writes the step's output; `value` is the state, old where the sequence has ended.
  __device__ void finish(int64_t step, T value) const {
    static_cast<T*>(p.h_next)[state] = value;
    if (p.y) {
      const int64_t place = p.batch_major ? (sequence * p.seq + time) * p.directions + direction
                                          : (time * p.directions + direction) * p.batch + sequence;
      static_cast<T*>(p.y)[place * p.hidden + j] = active ? value : from_compute<T>(C(0));
    }
    if (p.y_h && step == p.seq - 1) static_cast<T*>(p.y_h)[last_place()] = value;
  }
};

// The cells: what a step makes of a unit, `recurrent(k)` being gate k of H R^T.

template <typename T, typename F>
__device__ __forceinline__ void lstm_cell(const Unit<T>& u, int64_t step, const F& recurrent) {
  using C = Compute<T>;
  const RecurrentParams& p = u.p;
  C* state = static_cast<C*>(p.c) + u.state;
  T h = static_cast<const T*>(p.h)[u.state];
  if (u.active) {
    enum { kInput, kOutput, kForget, kCell };
    C sum[4], peephole[3] = {};
#pragma unroll
    for (int k = 0; k < 4; ++k) sum[k] = u.input(4, k) + recurrent(k) + u.bias(4, k);
    if (p.peephole)
      for (int k = 0; k < 3; ++k)
        peephole[k] = to_compute(static_cast<const T*>(p.peephole)[(u.direction * 3 + k) * p.hidden + u.j]);
    const C before = *state;
    const C in = u.function(0, u.clipped(sum[kInput] + peephole[kInput] * before));
    const C forget = p.input_forget ? C(1) - in : u.function(0, u.clipped(sum[kForget] + peephole[kForget] * before));
    const C after = forget * before + in * u.function(1, u.clipped(sum[kCell]));
    const C out = u.function(0, u.clipped(sum[kOutput] + peephole[kOutput] * after));
    *state = after;
    h = from_compute<T>(out * u.function(2, after));
  }
  u.finish(step, h);
  if (p.y_c && step == p.seq - 1) static_cast<T*>(p.y_c)[u.last_place()] = from_compute<T>(*state);
}

template <typename T, typename F>
__device__ __forceinline__ void rnn_cell(const Unit<T>& u, int64_t step, const F& recurrent) {
  T h = static_cast<const T*>(u.p.h)[u.state];
  if (u.active) h = from_compute<T>(u.function(0, u.clipped(u.input(1, 0) + recurrent(0) + u.bias(1, 0))));
  u.finish(step, h);
}

enum GruGate { kUpdate, kReset, kHidden };

// With linear_before_reset.
template <typename T, typename F>
__device__ __forceinline__ void gru_cell(const Unit<T>& u, int64_t step, const F& recurrent) {
  using C = Compute<T>;
  T h = static_cast<const T*>(u.p.h)[u.state];
  if (u.active) {
    const auto gate = [&](int k) { return u.function(0, u.clipped(u.input(3, k) + recurrent(k) + u.bias(3, k))); };
    const C update = gate(kUpdate), reset = gate(kReset);
    const C product = recurrent(kHidden) + u.bias_half(3, kHidden, true);
    const C sum = u.input(3, kHidden) + u.bias_half(3, kHidden, false) + reset * product;
    h = from_compute<T>((C(1) - update) * u.function(1, u.clipped(sum)) + update * to_compute(h));
  }
  u.finish(step, h);
}

}  // namespace cuvil::device
