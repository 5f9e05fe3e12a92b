#include <algorithm>

#include "device/by_type.cuh"
#include "device/index.cuh"
#include "device/vec.cuh"
#include "kernels/lrn.cuh"

namespace cuvil {
namespace {

using device::Compute;
using device::Vec;

constexpr int kThreads = 256;
// A thread walks up to kMaxRun channels, so that neighbouring windows share their loads; fewer where that would leave
// less than kManyThreads threads, which fill a large device.
constexpr int64_t kMaxRun = 16, kManyThreads = 1 << 18;

template <typename C>
struct Response {
  C alpha, beta, bias;
  bool three_quarters;  // beta of nearly every model: two roots cost far less than a power

  explicit Response(const LrnParams& p)
      : alpha(static_cast<C>(p.alpha)),
        beta(static_cast<C>(p.beta)),
        bias(static_cast<C>(p.bias)),
        three_quarters(p.beta == 0.75) {}
  __device__ __forceinline__ C operator()(C x, C sum) const {
    const C base = bias + alpha * sum;
    if (!three_quarters) return x * pow(base, -beta);
    const C root = sqrt(base);
    return x / (root * sqrt(root));
  }
};

// Threads are [batch, chunks, groups]: `run` channels of V neighbouring elements each.
template <typename Div>
struct Shape {
  int64_t threads, channels, inner, run;
  Div chunks, groups;
};

// The first element and the channels of this thread.
template <typename T, int V, typename Div>
struct Walk {
  int64_t base, begin, end;
  __device__ __forceinline__ Walk(const Shape<Div>& s, int64_t thread) {
    typename Div::Index rest, group, batch, chunk;
    s.groups.divmod(static_cast<typename Div::Index>(thread), rest, group);
    s.chunks.divmod(rest, batch, chunk);
    base = static_cast<int64_t>(batch) * s.channels * s.inner + static_cast<int64_t>(group) * V;
    begin = static_cast<int64_t>(chunk) * s.run;
    end = min(begin + s.run, s.channels);
  }
};

// A window of Window channels, the middle one being normalized, moves along in registers.
template <typename T, int V, int Window, typename Div>
__global__ void __launch_bounds__(kThreads)
    lrn_window(const T* __restrict__ x, T* __restrict__ y, Shape<Div> s, Response<Compute<T>> respond) {
  using C = Compute<T>;
  constexpr int kMiddle = Window / 2;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (thread >= s.threads) return;
  const Walk<T, V, Div> walk(s, thread);
  const auto read = [&](int64_t channel, C(&v)[V]) {
    Vec<T, V> in{};
    if (channel >= 0 && channel < s.channels) in = device::load<T, V>(x + walk.base + channel * s.inner);
#pragma unroll
    for (int j = 0; j < V; ++j) v[j] = device::to_compute(in[j]);
  };
  C ring[Window][V];
#pragma unroll
  for (int k = 1; k < Window; ++k) read(walk.begin + k - 1 - kMiddle, ring[k]);
#pragma unroll 4
  for (int64_t channel = walk.begin; channel < walk.end; ++channel) {
#pragma unroll
    for (int k = 1; k < Window; ++k) {
#pragma unroll
      for (int j = 0; j < V; ++j) ring[k - 1][j] = ring[k][j];
    }
    read(channel + kMiddle, ring[Window - 1]);
    Vec<T, V> out;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      C sum = 0;
#pragma unroll
      for (int k = 0; k < Window; ++k) sum += ring[k][j] * ring[k][j];
      out[j] = device::from_compute<T>(respond(ring[kMiddle][j], sum));
    }
    device::store(y + walk.base + channel * s.inner, out);
  }
}

// Any window: each output reads all of its channels.
template <typename T, int V, typename Div>
__global__ void __launch_bounds__(kThreads) lrn_any(const T* __restrict__ x, T* __restrict__ y, Shape<Div> s,
                                                    int64_t before, int64_t after, Response<Compute<T>> respond) {
  using C = Compute<T>;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (thread >= s.threads) return;
  const Walk<T, V, Div> walk(s, thread);
  for (int64_t channel = walk.begin; channel < walk.end; ++channel) {
    C sum[V] = {};
    const int64_t last = min(channel + after, s.channels - 1);
    for (int64_t k = max(channel - before, int64_t{0}); k <= last; ++k) {
      const Vec<T, V> in = device::load<T, V>(x + walk.base + k * s.inner);
#pragma unroll
      for (int j = 0; j < V; ++j) sum[j] += device::to_compute(in[j]) * device::to_compute(in[j]);
    }
    const Vec<T, V> in = device::load<T, V>(x + walk.base + channel * s.inner);
    Vec<T, V> out;
#pragma unroll
    for (int j = 0; j < V; ++j) out[j] = device::from_compute<T>(respond(device::to_compute(in[j]), sum[j]));
    device::store(y + walk.base + channel * s.inner, out);
  }
}

template <typename T, int V, typename Div>
cudaError_t launch(const LrnParams& p, cudaStream_t stream) {
  using Index = typename Div::Index;
  const int64_t groups = p.inner / V;
  const int64_t run = std::clamp<int64_t>(p.batch * p.channels * groups / kManyThreads, 1, kMaxRun);
  const int64_t chunks = (p.channels + run - 1) / run, threads = p.batch * chunks * groups;
  const Shape<Div> shape{
      threads, p.channels, p.inner, run, Div(static_cast<Index>(chunks)), Div(static_cast<Index>(groups))};
  const Response<Compute<T>> respond(p);
  const unsigned blocks = device::blocks_for(threads, kThreads);
  const T* x = static_cast<const T*>(p.x);
  T* y = static_cast<T*>(p.y);
  if (p.before == 2 && p.after == 2)
    lrn_window<T, V, 5, Div><<<blocks, kThreads, 0, stream>>>(x, y, shape, respond);
  else if (p.before == 1 && p.after == 1)
    lrn_window<T, V, 3, Div><<<blocks, kThreads, 0, stream>>>(x, y, shape, respond);
  else
    lrn_any<T, V, Div><<<blocks, kThreads, 0, stream>>>(x, y, shape, p.before, p.after, respond);
  return cudaGetLastError();
}

template <typename T>
cudaError_t dispatch(const LrnParams& p, cudaStream_t stream) {
  constexpr int V = device::kVec16<T>;
  const uintptr_t addresses = reinterpret_cast<uintptr_t>(p.x) | reinterpret_cast<uintptr_t>(p.y);
  const bool vectors = p.inner % V == 0 && addresses % 16 == 0;
  if (p.batch * p.channels * p.inner > device::kMaxIndex32)
    return vectors ? launch<T, V, device::Div64>(p, stream) : launch<T, 1, device::Div64>(p, stream);
  return vectors ? launch<T, V, device::FastDiv32>(p, stream) : launch<T, 1, device::FastDiv32>(p, stream);
}

}  // namespace

cudaError_t launch_lrn(const LrnParams& p, cudaStream_t stream) {
  if (p.batch * p.channels * p.inner == 0) return cudaSuccess;
  return device::by_float_type(p.dtype, [&]<typename T>() { return dispatch<T>(p, stream); });
}

}  // namespace cuvil
