// The tensor map by which the copy engine of sm_90 fetches x for int4_wgmma_impl.cuh.
#pragma once

#include <cuda.h>

#include "kernels/int4_gemm.cuh"

namespace cuvil {
namespace int4_gemm {

// Places of a box: 128 bytes, what a row of the swizzle has.
constexpr int kBoxDepth = 64;

// Boxes of `columns` rows of p.x by kBoxDepth places. p.x is a multiple of 16, the depth of 8.
cudaError_t int4_x_map(const Int4GemmParams& p, int columns, CUtensorMap* map);

}  // namespace int4_gemm
}  // namespace cuvil
