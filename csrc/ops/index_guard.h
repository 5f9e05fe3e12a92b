// Reports indices that a kernel found out of range without waiting for it.
//
// An index in device memory is only known to the kernel, and waiting for every Gather would cost more than the Gather.
// Where the index is out of range the kernel gathers 0 or scatters nothing, and raises a flag in host memory; the
// node's next eager execution finds the flag and fails. Within a CUDA Graph replay no host code runs: nothing is
// reported.
#pragma once

#include "ops/op.h"

namespace cuvil {

class IndexGuard {
 public:
  IndexGuard() {
    CUVIL_CUDA(cudaHostAlloc(reinterpret_cast<void**>(&flag_), sizeof(int), cudaHostAllocPortable));
    *flag_ = 0;
  }
  ~IndexGuard() { cudaFreeHost(flag_); }
  IndexGuard(const IndexGuard&) = delete;
  IndexGuard& operator=(const IndexGuard&) = delete;

  // The flag for a kernel to raise. Throws when an earlier execution raised it, saying `what` was out of range and what
  // the kernel did instead.
  int* arm(const char* what = "an index", const char* instead = "gathered 0 or scattered nothing there") {
    volatile int* flag = flag_;
    const bool raised = *flag != 0;
    *flag = 0;
    require(!raised, what, " was out of range in an earlier run of this node, which ", instead);
    return flag_;
  }

 private:
  int* flag_ = nullptr;
};

}  // namespace cuvil
