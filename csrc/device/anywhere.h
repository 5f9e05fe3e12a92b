// For small functions that host code, its tests and kernels share.
#pragma once

#ifdef __CUDACC__
#define CUVIL_ANYWHERE __host__ __device__ __forceinline__
#else
#define CUVIL_ANYWHERE inline
#endif
