#include "device/by_type.cuh"
#include "device/index.cuh"
#include "kernels/recurrent.cuh"
#include "kernels/recurrent_cell.cuh"

namespace cuvil {
namespace {

using namespace device;

constexpr int kThreads = 256;

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

// A kernel a cell: the product is there already.
template <typename T>
__global__ void __launch_bounds__(kThreads) lstm_step(RecurrentParams p, int64_t step) {
  for_unit<T>(p, step, [&](const Unit<T>& u) { lstm_cell(u, step, [&](int k) { return u.recurrent(4, k); }); });
}

template <typename T>
__global__ void __launch_bounds__(kThreads) rnn_step(RecurrentParams p, int64_t step) {
  for_unit<T>(p, step, [&](const Unit<T>& u) { rnn_cell(u, step, [&](int k) { return u.recurrent(1, k); }); });
}

template <typename T>
__global__ void __launch_bounds__(kThreads) gru_step(RecurrentParams p, int64_t step) {
  for_unit<T>(p, step, [&](const Unit<T>& u) { gru_cell(u, step, [&](int k) { return u.recurrent(3, k); }); });
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
