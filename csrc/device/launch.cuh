// Products that start while the kernel in front of them ends, to fetch their weights meanwhile: programmatic dependent
// launch (CUDA programming guide, "Programmatic Dependent Launch and Synchronization").
#pragma once

#include <cuda_runtime.h>

#include <type_traits>

#include "core/early_launch.h"

namespace cuvil::device {

// For kernels that products often follow: a product launched by launch_early may start once all blocks of this one run.
// Where the kernel behind was launched as usual, this does nothing.
__device__ __forceinline__ void let_successor_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// In each kernel that launch_early starts, for all its threads: nothing that the kernel in front wrote may be read, and
// nothing that it reads may be written, before. A block that left without it could let the kernel behind start before
// the one in front has ended.
__device__ __forceinline__ void wait_for_predecessor() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  let_successor_start();
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// kernel<<<grid, block, shared, stream>>>(args...) in clusters of `depth` blocks along z (sm_90, where depth > 1); an
// error is left for cudaGetLastError.
template <typename... P>
void launch_early_cluster(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, unsigned depth,
                          cudaStream_t stream, std::type_identity_t<P>... args) {
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = attributes;
  if (early_launch()) {
    cudaLaunchAttribute& early = attributes[config.numAttrs++];
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
  }
  if (depth > 1) {
    cudaLaunchAttribute& cluster = attributes[config.numAttrs++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {1, 1, depth};
  }
  cudaLaunchKernelEx(&config, kernel, args...);
}

// The same without clusters.
template <typename... P>
void launch_early(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                  std::type_identity_t<P>... args) {
  launch_early_cluster(kernel, grid, block, shared, 1, stream, args...);
}

}  // namespace cuvil::device
