#!/bin/sh
# Builds build/int4_ways from int4_ways.cu: int4_ways.sh [ARCHITECTURE], 90a by default, or 80 for the kernels of sm_80.
# Needs nvcc and, for the driver's and ONNX Runtime's headers, nothing else: the kernels know neither.
set -e
cd "$(dirname "$0")/../.."
arch=${1:-90a}
out=build/int4_ways_$arch
mkdir -p "$out"
flags="-std=c++20 -O3 -gencode arch=compute_$arch,code=sm_$arch -Icsrc"
ls csrc/kernels/int4_*.cu csrc/ops/int4_ways.cc csrc/core/early_launch.cc benchmarks/kernels/int4_ways.cu |
  xargs -P "${JOBS:-8}" -I{} sh -c "nvcc $flags -c {} -o $out/\$(basename {}).o"
nvcc $flags -cudart static "$out"/*.o -o build/int4_ways
