#include "device/by_type.cuh"
#include "device/vec.cuh"
#include "kernels/determinant.cuh"

namespace cuvil {
namespace {

using namespace device;

constexpr int kThreads = 256;

// A block does one matrix, whose rows are never moved but named by an exchange: a swap changes the sign.
template <typename T>
__global__ void __launch_bounds__(kThreads) determinant(const DeterminantParams p) {
  using C = Compute<T>;
  const int n = static_cast<int>(p.n), size = n * n;
  const T* x = static_cast<const T*>(p.x) + static_cast<int64_t>(blockIdx.x) * size;
  C* a = static_cast<C*>(p.work) + static_cast<int64_t>(blockIdx.x) * size;
  __shared__ int shared_row;
  for (int i = threadIdx.x; i < size; i += kThreads) a[i] = to_compute(x[i]);
  C product = 1;
  for (int k = 0; k < n; ++k) {
    __syncthreads();
    if (threadIdx.x == 0) {
      // The largest of column k; a NaN wins, so that it reaches the result.
      int best = k;
      for (int i = k + 1; i < n; ++i) {
        const C value = a[i * n + k], top = a[best * n + k];
        if (value != value || (value < 0 ? -value : value) > (top < 0 ? -top : top)) best = i;
      }
      shared_row = best;
    }
    __syncthreads();
    const int pivot_row = shared_row;
    const C pivot = a[pivot_row * n + k];
    if (pivot_row != k) {
      __syncthreads();  // all have read the pivot
      for (int j = k + static_cast<int>(threadIdx.x); j < n; j += kThreads) {
        const C other = a[k * n + j];
        a[k * n + j] = a[pivot_row * n + j];
        a[pivot_row * n + j] = other;
      }
      product = -product;
    }
    product *= pivot;
    if (pivot == 0) break;
    __syncthreads();
    const int left = n - k - 1;
    for (int i = threadIdx.x; i < left * left; i += kThreads) {
      const int row = k + 1 + i / left, column = k + 1 + i % left;
      a[row * n + column] -= a[row * n + k] / pivot * a[k * n + column];
    }
  }
  if (threadIdx.x == 0) static_cast<T*>(p.y)[blockIdx.x] = from_compute<T>(product);
}

}  // namespace

size_t determinant_scratch_bytes(const DeterminantParams& p) {
  return static_cast<size_t>(p.count * p.n * p.n) * (p.dtype == DType::kF64 ? sizeof(double) : sizeof(float));
}

cudaError_t launch_determinant(const DeterminantParams& p, cudaStream_t stream) {
  if (p.count == 0) return cudaSuccess;
  if (p.count > INT32_MAX || p.n > 46340) return cudaErrorInvalidValue;
  return by_float_type(p.dtype, [&]<typename T>() {
    determinant<T><<<static_cast<unsigned>(p.count), kThreads, 0, stream>>>(p);
    return cudaGetLastError();
  });
}

}  // namespace cuvil
