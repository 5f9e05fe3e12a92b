// The copies that ORT inserts between this EP and the CPU. ORT asks for them by fixed names; without them it would use
// a copy of its own and could hand a device kernel a host pointer.
#pragma once

#include "ep/ort.h"

namespace cuvil::ep {

void add_memcpy_kernels(Ort::KernelRegistry& registry);

}  // namespace cuvil::ep
