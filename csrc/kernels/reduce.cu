#include "kernels/reduce.cuh"
#include "kernels/reduce_impl.cuh"

namespace cuvil {

size_t reduce_partial_size(DType dtype) {
  return dtype == DType::kF16 || dtype == DType::kBF16 ? sizeof(float) : size_of(dtype);
}

cudaError_t launch_reduce(const ReduceParams& p, cudaStream_t stream) {
  using reduce_impl::Finish;
  if (p.outer * p.inner == 0) return cudaSuccess;
  switch (p.kind) {
    case Reduction::kSum:
      return reduce_impl::launch_sum(p, Finish::kNone, stream);
    case Reduction::kMean:
      return reduce_impl::launch_sum(p, Finish::kDivide, stream);
    case Reduction::kMax:
      return reduce_impl::launch_max(p, stream);
    case Reduction::kMin:
      return reduce_impl::launch_min(p, stream);
    case Reduction::kProd:
      return reduce_impl::launch_prod(p, stream);
    case Reduction::kL1:
      return reduce_impl::launch_abs_sum(p, Finish::kNone, stream);
    case Reduction::kL2:
      return reduce_impl::launch_square_sum(p, Finish::kSqrt, stream);
    case Reduction::kSumSquare:
      return reduce_impl::launch_square_sum(p, Finish::kNone, stream);
    case Reduction::kLogSum:
      return reduce_impl::launch_sum(p, Finish::kLog, stream);
    case Reduction::kLogSumExp:
      return reduce_impl::launch_log_sum_exp(p, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace cuvil
