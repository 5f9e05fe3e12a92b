// What the kernel benchmarks share: three arenas of device memory, and the rate of a launch against the card's copy.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <vector>

#include "core/cuda_check.h"

constexpr size_t kArena = size_t{1} << 30;
inline char *source, *target, *scratch;
inline double copy_rate;

// Median over 20 runs, GB/s of `bytes`. The arenas are far larger than any L2, and each case walks at least 64 MB.
inline void measure(const char* name, double bytes, const std::function<void()>& run) {
  cudaEvent_t begin, end;
  CUVIL_CUDA(cudaEventCreate(&begin));
  CUVIL_CUDA(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i < 23; ++i) {
    CUVIL_CUDA(cudaEventRecord(begin));
    run();
    CUVIL_CUDA(cudaEventRecord(end));
    CUVIL_CUDA(cudaEventSynchronize(end));
    float ms = 0;
    CUVIL_CUDA(cudaEventElapsedTime(&ms, begin, end));
    if (i >= 3) times.push_back(ms);
  }
  std::sort(times.begin(), times.end());
  const double ms = times[times.size() / 2], rate = bytes / ms / 1e6;
  if (copy_rate == 0) copy_rate = rate;
  std::printf("%-52s %9.1f us %8.0f GB/s %6.1f %% of copy\n", name, ms * 1e3, rate, 100 * rate / copy_rate);
}

// The arenas, filled with zeros, and the card's own copy as the first line.
inline void start() {
  for (char** arena : {&source, &target, &scratch}) {
    CUVIL_CUDA(cudaMalloc(arena, kArena));
    CUVIL_CUDA(cudaMemset(*arena, 0, kArena));
  }
  measure("cudaMemcpyAsync, 256 MiB", 2.0 * (256 << 20),
          [] { CUVIL_CUDA(cudaMemcpyAsync(target, source, 256 << 20, cudaMemcpyDeviceToDevice)); });
}
