// Every way of the 4-bit products on its own, without ONNX Runtime: which cut is fastest, how far the copies alone get,
// and whether all results are right.
//
//   int4_ways [KxN ...] [-m M,M,...] [-k PREFIX]     PREFIX: of a way's name, as "direct" or "mma c8"
//
// Microseconds are of one product of a CUDA graph of products whose weights take turns, so that none is in the L2
// cache. "copies" is a kernel that only fetches codes as int4_wgmma_impl.cuh does. CUVIL_EARLY_LAUNCH=0 turns the
// overlap of neighbouring kernels off. Built by benchmarks/kernels/int4_ways.sh.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "device/bulk_copy.cuh"
#include "device/launch.cuh"
#include "ops/int4_engine.h"

namespace cuvil {
namespace {

#define CHECK(call)                                                                         \
  do {                                                                                      \
    const cudaError_t code_ = (call);                                                       \
    if (code_ != cudaSuccess) {                                                             \
      std::printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(code_)); \
      std::exit(1);                                                                         \
    }                                                                                       \
  } while (false)

__device__ uint32_t mixed(uint32_t x) {
  x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15, x *= 0x846ca68bu;
  return x ^ x >> 16;
}
__global__ void fill_words(uint32_t* to, size_t count, uint32_t seed) {
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += size_t{gridDim.x} * blockDim.x)
    to[i] = mixed(static_cast<uint32_t>(i) ^ seed);
}
__global__ void fill_halves(__half* to, size_t count, uint32_t seed, float low, float high) {
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += size_t{gridDim.x} * blockDim.x)
    to[i] =
        __float2half(low + (high - low) * static_cast<float>(mixed(static_cast<uint32_t>(i) ^ seed) & 0xFFFF) / 65536);
}

// The largest error of some columns of y as a part of what float16 allows: half a unit of each weight, of the result,
// and the additions'.
__global__ void errors(const __half* x, const __half* w, const __half* y, int m, int rows, int depth, int apart,
                       float* worst) {
  const int row = static_cast<int>(blockIdx.x) * apart, column = static_cast<int>(blockIdx.y);
  if (row >= rows || column >= m) return;
  double sum = 0, size = 0;
  for (int k = static_cast<int>(threadIdx.x); k < depth; k += 32) {
    const double v = static_cast<double>(__half2float(x[int64_t{column} * depth + k])) *
                     static_cast<double>(__half2float(w[int64_t{row} * depth + k]));
    sum += v, size += fabs(v);
  }
  for (int i = 16; i > 0; i /= 2) sum += __shfl_xor_sync(~0u, sum, i), size += __shfl_xor_sync(~0u, size, i);
  if (threadIdx.x != 0) return;
  const double bound = size * (1 / 2048. + 4. * depth / (1 << 24)) + fabs(sum) / 2048 + 1e-6;
  const double error = fabs(static_cast<double>(__half2float(y[int64_t{column} * rows + row])) - sum) / bound;
  // A NaN counts as infinite. Positive floats compare as integers.
  atomicMax(reinterpret_cast<int*>(worst), __float_as_int(error >= 0 ? static_cast<float>(error) : INFINITY));
}

// Fetches all codes as the kernel with wgmma does, one warp a block, and looks at none. `pieces`: copies a step of 16
// KB.
__global__ void __launch_bounds__(256) copies(const unsigned char* from, int64_t steps, int stages, int pieces) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) unsigned char stage[];
  __shared__ __align__(8) uint64_t barriers[8];
  if (threadIdx.x == 0) {
    for (int i = 0; i < stages; ++i) device::barrier_init(device::shared_address(barriers + i), 1);
    device::barrier_init_done();
  }
  __syncthreads();
  device::let_successor_start();
  constexpr uint32_t kStep = 16384;
  const int64_t first = steps * blockIdx.x / gridDim.x, end = steps * (blockIdx.x + 1) / gridDim.x;
  if (threadIdx.x < 32) {
    const int lane = static_cast<int>(threadIdx.x);
    const uint64_t policy = device::l2_policy(true);
    const uint32_t piece = kStep / static_cast<uint32_t>(pieces);
    const auto fetch = [&](int64_t step, int slot) {
      const uint32_t barrier = device::shared_address(barriers + slot);
      if (lane == 0) device::barrier_expect(barrier, kStep);
      __syncwarp();
      if (lane < pieces)
        device::bulk_copy(device::shared_address(stage) + slot * kStep + lane * piece,
                          from + (step + lane * steps) / pieces * kStep + (step + lane * steps) % pieces * piece, piece,
                          barrier, policy);
    };
    int64_t next = first;
    for (int i = 0; i < stages && next < end; ++i) fetch(next++, i);
    device::wait_for_predecessor();
    uint32_t parity = 0;
    int slot = 0;
    for (int64_t i = first; i < end; ++i) {
      device::barrier_wait(device::shared_address(barriers + slot), parity);
      __syncwarp();
      if (next < end) fetch(next++, slot);
      if (++slot == stages) slot = 0, parity ^= 1;
    }
  } else {
    device::wait_for_predecessor();
  }
#endif
}

struct Device {
  cudaStream_t stream;
  cudaEvent_t start, end;
};

// The median of 9 samples of a graph of launches, a launch.
double microseconds(const Device& d, int launches, const std::function<void(int)>& launch) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CHECK(cudaStreamBeginCapture(d.stream, cudaStreamCaptureModeRelaxed));
  for (int i = 0; i < launches; ++i) launch(i);
  CHECK(cudaStreamEndCapture(d.stream, &graph));
  CHECK(cudaGraphInstantiate(&exec, graph, 0));
  std::vector<float> all;
  for (int i = 0; i < 10; ++i) {
    CHECK(cudaEventRecord(d.start, d.stream));
    CHECK(cudaGraphLaunch(exec, d.stream));
    CHECK(cudaEventRecord(d.end, d.stream));
    CHECK(cudaEventSynchronize(d.end));
    float ms = 0;
    CHECK(cudaEventElapsedTime(&ms, d.start, d.end));
    if (i > 0) all.push_back(ms);
  }
  CHECK(cudaGraphExecDestroy(exec));
  CHECK(cudaGraphDestroy(graph));
  std::sort(all.begin(), all.end());
  return 1e3 * all[all.size() / 2] / launches;
}

template <typename T>
T* device_memory(size_t bytes) {
  void* p = nullptr;
  CHECK(cudaMalloc(&p, bytes));
  return static_cast<T*>(p);
}

int shape(const Device& d, const DeviceInfo& info, int k, int n, const std::vector<int>& ms,
          const std::string& prefix) {
  Int4Weight w;
  w.dtype = DType::kF16, w.rows = n, w.depth = k, w.group_shift = 7, w.groups = (k + 127) / 128, w.zero = 8;
  const size_t bytes = w.code_bytes() + w.group_values() * 2;
  const int count = static_cast<int>(std::max<size_t>(2, ((size_t{192} << 20) + bytes - 1) / bytes));
  const int launches = std::max(count, 24 / count * count);
  std::vector<Int4Weight> weights(static_cast<size_t>(count), w);
  for (int i = 0; i < count; ++i) {
    auto* codes = device_memory<uint32_t>(w.code_bytes());
    auto* scales = device_memory<__half>(w.group_values() * 2);
    fill_words<<<1024, 256, 0, d.stream>>>(codes, w.code_bytes() / 4, 1000u + static_cast<uint32_t>(i));
    fill_halves<<<1024, 256, 0, d.stream>>>(scales, w.group_values(), 2000u + static_cast<uint32_t>(i), 0.002f, 0.02f);
    weights[static_cast<size_t>(i)].codes = reinterpret_cast<const uint4*>(codes);
    weights[static_cast<size_t>(i)].scales = scales;
  }
  auto* numbers = device_memory<__half>(static_cast<size_t>(n) * static_cast<size_t>(k) * 2);
  CHECK(launch_unpack(weights.back(), numbers, d.stream));
  auto* worst = device_memory<float>(4);
  const double unpack = microseconds(
      d, launches, [&](int i) { CHECK(launch_unpack(weights[static_cast<size_t>(i % count)], numbers, d.stream)); });
  std::printf("== %d x %d: %.1f MB; as numbers in %.1f us (%.0f GB/s)\n", k, n, static_cast<double>(bytes) / 1e6,
              unpack, (static_cast<double>(bytes) + 2. * n * k) / unpack / 1e3);
  if (prefix.empty()) {
    CHECK(cudaFuncSetAttribute(copies, cudaFuncAttributeMaxDynamicSharedMemorySize, 6 * 16384));
    for (const int per : {1, 2})
      for (const int pieces : {1, 8})
        for (const int stages : {3, 5, 6}) {
          const int64_t steps = static_cast<int64_t>(w.code_bytes() / 16384);
          const double us = microseconds(d, launches, [&](int i) {
            device::launch_early(copies, dim3(static_cast<unsigned>(per * info.sm_count)), dim3(256),
                                 static_cast<size_t>(stages) * 16384, d.stream,
                                 reinterpret_cast<const unsigned char*>(weights[static_cast<size_t>(i % count)].codes),
                                 steps, stages, pieces);
            CHECK(cudaGetLastError());
          });
          std::printf("copies %d a multiprocessor, %d stages of %d: %.2f us (%.0f GB/s)\n", per, stages, pieces, us,
                      static_cast<double>(w.code_bytes()) / us / 1e3);
        }
  }
  int wrong = 0;
  for (const int m : ms) {
    auto* x = device_memory<__half>(static_cast<size_t>(m) * static_cast<size_t>(k) * 2);
    auto* y = device_memory<__half>(static_cast<size_t>(m) * static_cast<size_t>(n) * 2);
    fill_halves<<<1024, 256, 0, d.stream>>>(x, static_cast<size_t>(m) * static_cast<size_t>(k), 7u, -1.f, 1.f);
    for (const Int4Way& way : int4_ways(w, m, info)) {
      const std::string name = int4_way_name(w, m, way);
      if (!name.starts_with(prefix)) continue;
      const size_t tiles = static_cast<size_t>(int4_tiles(w, way, m));
      auto* partial = device_memory<float>(int4_partial_bytes(w, way, m) + 16);
      auto* counters = device_memory<unsigned>(tiles * 4);
      CHECK(cudaMemsetAsync(counters, 0, tiles * 4, d.stream));
      CHECK(cudaMemsetAsync(y, 0xFF, static_cast<size_t>(m) * static_cast<size_t>(n) * 2, d.stream));
      Int4GemmParams p;
      p.x = x, p.m = m, p.y = y, p.way = way, p.partial = partial, p.counters = counters, p.constant_weight = true;
      const double us = microseconds(d, launches, [&](int i) {
        p.weight = weights[static_cast<size_t>(i % count)];
        CHECK(launch_int4_gemm(p, d.stream));
      });
      CHECK(cudaMemsetAsync(worst, 0, 4, d.stream));
      const int apart = n / 96 + 1;
      errors<<<dim3(static_cast<unsigned>((n + apart - 1) / apart), static_cast<unsigned>(m)), 32, 0, d.stream>>>(
          x, numbers, y, m, n, k, apart, worst);
      float error = 0;
      CHECK(cudaMemcpyAsync(&error, worst, 4, cudaMemcpyDeviceToHost, d.stream));
      CHECK(cudaStreamSynchronize(d.stream));
      wrong += !(error <= 1);
      std::printf("%d x %d M %d  %-34s %8.2f us %5.0f GB/s %5.0f TFLOP/s error %.2f%s\n", k, n, m, name.c_str(), us,
                  static_cast<double>(bytes) / us / 1e3, 2e-6 * m * n * k / us, static_cast<double>(error),
                  error <= 1 ? "" : "  WRONG");
      std::fflush(stdout);
      CHECK(cudaFree(partial));
      CHECK(cudaFree(counters));
    }
    CHECK(cudaFree(x));
    CHECK(cudaFree(y));
  }
  for (const Int4Weight& each : weights) {
    CHECK(cudaFree(const_cast<uint4*>(each.codes)));
    CHECK(cudaFree(const_cast<void*>(each.scales)));
  }
  CHECK(cudaFree(numbers));
  CHECK(cudaFree(worst));
  return wrong;
}

}  // namespace
}  // namespace cuvil

int main(int argc, char** argv) {
  using namespace cuvil;
  std::vector<std::pair<int, int>> shapes;
  std::vector<int> ms;
  std::string prefix;
  for (int i = 1; i < argc; ++i) {
    int k = 0, n = 0;
    if (std::strcmp(argv[i], "-m") == 0 && i + 1 < argc) {
      const char* text = argv[++i];
      for (char* end = nullptr; *text; text = *end ? end + 1 : end)
        ms.push_back(static_cast<int>(std::strtol(text, &end, 10)));
    } else if (std::strcmp(argv[i], "-k") == 0 && i + 1 < argc) {
      prefix = argv[++i];
    } else if (std::sscanf(argv[i], "%dx%d", &k, &n) == 2) {
      shapes.emplace_back(k, n);
    }
  }
  if (shapes.empty()) shapes = {{4096, 6144}, {4096, 28672}, {14336, 4096}};
  if (ms.empty()) ms = {1, 8, 16, 32, 64, 128, 256};
  cudaDeviceProp properties;
  CHECK(cudaGetDeviceProperties(&properties, 0));
  DeviceInfo info;
  info.sm = properties.major * 10 + properties.minor, info.sm_count = properties.multiProcessorCount;
  info.l2_bytes = static_cast<size_t>(properties.l2CacheSize);
  info.max_shared_per_block = properties.sharedMemPerBlockOptin, info.name = properties.name;
  Device d{};
  CHECK(cudaStreamCreateWithFlags(&d.stream, cudaStreamNonBlocking));
  CHECK(cudaEventCreate(&d.start));
  CHECK(cudaEventCreate(&d.end));
  int wrong = 0;
  for (const auto& [k, n] : shapes) wrong += shape(d, info, k, n, ms, prefix);
  std::printf(wrong ? "%d WRONG\n" : "all right\n", wrong);
  return wrong != 0;
}
