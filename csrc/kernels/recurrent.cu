#include "device/activation.cuh"
#include "device/by_type.cuh"
#include "device/index.cuh"
#include "device/vec.cuh"
#include "kernels/recurrent.cuh"

namespace cuvil {
namespace {

using namespace device;

constexpr int kThreads = 256;

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
    if (active) static_cast<T*>(p.h)[state] = value;
    if (p.y) {
      const int64_t place = p.batch_major ? (sequence * p.seq + time) * p.directions + direction
                                          : (time * p.directions + direction) * p.batch + sequence;
      static_cast<T*>(p.y)[place * p.hidden + j] = active ? value : from_compute<T>(C(0));
    }
    if (p.y_h && step == p.seq - 1) static_cast<T*>(p.y_h)[last_place()] = value;
  }
};

// Calls f with each thread's unit.
template <typename T, typename F>
__device__ __forceinline__ void for_unit(const RecurrentParams& p, int64_t step, const F& f) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < p.directions * p.batch * p.hidden) f(Unit<T>(p, i, step));
}

template <typename T>
__global__ void __launch_bounds__(kThreads) init(RecurrentParams p, const void* initial_h, const void* initial_c) {
  for_unit<T>(p, 0, [&](const Unit<T>& u) {
    const int64_t from = u.last_place();
    const T zero = from_compute<T>(Compute<T>(0));
    const T h = initial_h ? static_cast<const T*>(initial_h)[from] : zero;
    const T c = initial_c ? static_cast<const T*>(initial_c)[from] : zero;
    static_cast<T*>(p.h)[u.state] = h;
    if (p.c) static_cast<Compute<T>*>(p.c)[u.state] = to_compute(c);
    if (p.y_h) static_cast<T*>(p.y_h)[from] = h;
    if (p.y_c) static_cast<T*>(p.y_c)[from] = c;
  });
}

template <typename T>
__global__ void __launch_bounds__(kThreads) lstm_step(RecurrentParams p, int64_t step) {
  for_unit<T>(p, step, [&](const Unit<T>& u) {
    using C = Compute<T>;
    C* state = static_cast<C*>(p.c) + u.state;
    T h = static_cast<const T*>(p.h)[u.state];
    if (u.active) {
      enum { kInput, kOutput, kForget, kCell };
      C sum[4], peephole[3] = {};
      for (int k = 0; k < 4; ++k) sum[k] = u.input(4, k) + u.recurrent(4, k) + u.bias(4, k);
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
  });
}

template <typename T>
__global__ void __launch_bounds__(kThreads) rnn_step(RecurrentParams p, int64_t step) {
  for_unit<T>(p, step, [&](const Unit<T>& u) {
    T h = static_cast<const T*>(p.h)[u.state];
    if (u.active) {
      const Compute<T> sum = u.input(1, 0) + u.recurrent(1, 0) + u.bias(1, 0);
      h = from_compute<T>(u.function(0, u.clipped(sum)));
    }
    u.finish(step, h);
  });
}

enum GruGate { kUpdate, kReset, kHidden };

template <typename T>
__global__ void __launch_bounds__(kThreads) gru_step(RecurrentParams p, int64_t step) {
  for_unit<T>(p, step, [&](const Unit<T>& u) {
    using C = Compute<T>;
    T h = static_cast<const T*>(p.h)[u.state];
    if (u.active) {
      const auto gate = [&](int k) {
        return u.function(0, u.clipped(u.input(3, k) + u.recurrent(3, k) + u.bias(3, k)));
      };
      const C update = gate(kUpdate), reset = gate(kReset);
      const C product = u.recurrent(3, kHidden) + u.bias_half(3, kHidden, true);
      const C sum = u.input(3, kHidden) + u.bias_half(3, kHidden, false) + reset * product;
      h = from_compute<T>((C(1) - update) * u.function(1, u.clipped(sum)) + update * to_compute(h));
    }
    u.finish(step, h);
  });
}

template <typename T>
__global__ void __launch_bounds__(kThreads) gru_gates(RecurrentParams p, int64_t step, void* update, void* reset_h) {
  for_unit<T>(p, step, [&](const Unit<T>& u) {
    using C = Compute<T>;
    C z = C(0), product = C(0);
    if (u.active) {
      const auto gate = [&](int k) {
        return u.function(0, u.clipped(u.input(3, k) + u.recurrent(2, k) + u.bias(3, k)));
      };
      z = gate(kUpdate);
      product = gate(kReset) * u.h();
    }
    static_cast<C*>(update)[u.state] = z;
    static_cast<T*>(reset_h)[u.state] = from_compute<T>(product);
  });
}

template <typename T>
__global__ void __launch_bounds__(kThreads) gru_hidden(RecurrentParams p, int64_t step, const void* update) {
  for_unit<T>(p, step, [&](const Unit<T>& u) {
    using C = Compute<T>;
    T h = static_cast<const T*>(p.h)[u.state];
    if (u.active) {
      const C z = static_cast<const C*>(update)[u.state];
      const C sum = u.input(3, kHidden) + u.recurrent(1, 0) + u.bias(3, kHidden);
      h = from_compute<T>((C(1) - z) * u.function(1, u.clipped(sum)) + z * to_compute(h));
    }
    u.finish(step, h);
  });
}

// Calls `f.template operator()<T>(blocks)`; nothing when there is no unit.
template <typename F>
cudaError_t launch(const RecurrentParams& p, const F& f) {
  const int64_t units = p.directions * p.batch * p.hidden;
  if (units == 0) return cudaSuccess;
  if (units > kMaxIndex32) return cudaErrorInvalidValue;
  const unsigned blocks = blocks_for(units, kThreads);
  return by_float_type(p.dtype, [&]<typename T>() {
    f.template operator()<T>(blocks);
    return cudaGetLastError();
  });
}

}  // namespace

cudaError_t launch_recurrent_init(const RecurrentParams& p, const void* initial_h, const void* initial_c,
                                  cudaStream_t stream) {
  return launch(
      p, [&]<typename T>(unsigned blocks) { init<T><<<blocks, kThreads, 0, stream>>>(p, initial_h, initial_c); });
}

cudaError_t launch_lstm_step(const RecurrentParams& p, int64_t step, cudaStream_t stream) {
  return launch(p, [&]<typename T>(unsigned blocks) { lstm_step<T><<<blocks, kThreads, 0, stream>>>(p, step); });
}

cudaError_t launch_rnn_step(const RecurrentParams& p, int64_t step, cudaStream_t stream) {
  return launch(p, [&]<typename T>(unsigned blocks) { rnn_step<T><<<blocks, kThreads, 0, stream>>>(p, step); });
}

cudaError_t launch_gru_step(const RecurrentParams& p, int64_t step, cudaStream_t stream) {
  return launch(p, [&]<typename T>(unsigned blocks) { gru_step<T><<<blocks, kThreads, 0, stream>>>(p, step); });
}

cudaError_t launch_gru_gates(const RecurrentParams& p, int64_t step, void* update, void* reset_h, cudaStream_t stream) {
  return launch(
      p, [&]<typename T>(unsigned blocks) { gru_gates<T><<<blocks, kThreads, 0, stream>>>(p, step, update, reset_h); });
}

cudaError_t launch_gru_hidden(const RecurrentParams& p, int64_t step, const void* update, cudaStream_t stream) {
  return launch(p,
                [&]<typename T>(unsigned blocks) { gru_hidden<T><<<blocks, kThreads, 0, stream>>>(p, step, update); });
}

}  // namespace cuvil
