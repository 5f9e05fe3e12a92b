#include "device/by_type.cuh"
#include "device/index.cuh"
#include "kernels/signal_window.cuh"

namespace cuvil {
namespace {

constexpr int kThreads = 256;

template <typename T>
__global__ void __launch_bounds__(kThreads) signal_window(const SignalWindowParams p) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= p.n) return;
  const double turn = 2 * static_cast<double>(i) / p.length;  // in units of pi, so that no large angle is reduced
  const double y = p.a[0] - p.a[1] * cospi(turn) + p.a[2] * cospi(2 * turn);
  static_cast<T*>(p.y)[i] = device::from_compute<T>(static_cast<device::Compute<T>>(y));
}

}  // namespace

cudaError_t launch_signal_window(const SignalWindowParams& p, cudaStream_t stream) {
  if (p.n == 0) return cudaSuccess;
  if (p.n > int64_t{kThreads} * INT32_MAX) return cudaErrorInvalidValue;
  return device::by_float_type(p.dtype, [&]<typename T>() {
    signal_window<T><<<device::blocks_for(p.n, kThreads), kThreads, 0, stream>>>(p);
    return cudaGetLastError();
  });
}

}  // namespace cuvil
