// Kernels of nodes with bodies: ONNX Runtime's own, which keep what the bodies hand over in this EP's memory.
#pragma once

#include "ep/ort.h"
#include "ops/op.h"

namespace cuvil::ep {

class Ep;

// `kind` is not kNone. The caller owns the kernel.
OrtKernelImpl* new_control_flow_kernel(Ep& ep, ControlFlow kind, const OrtKernelInfo* info);

}  // namespace cuvil::ep
