// An Op behind ORT's kernel interface.
#pragma once

#include <memory>
#include <string>

#include "ep/kernel_context.h"
#include "ep/ort.h"
#include "ops/op.h"

namespace cuvil::ep {

class Ep;

class Kernel : public OrtKernelImpl {
 public:
  Kernel(Ep& ep, const OpEntry& entry, const OrtKernelInfo* info);
  ~Kernel();
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  // OrtKernelCreateFunc; `state` is the OpEntry.
  static OrtStatus* create(void* state, const OrtKernelInfo* info, OrtKernelImpl** out) noexcept;

 private:
  void set_callbacks();
  void compute(OrtKernelContext* context);
  bool prepack(const OrtValue* weight, int input);

  Ep& ep_;
  std::string where_;  // "node 'x' (Relu)"
  NodePorts ports_;
  std::unique_ptr<Op> op_;
};

}  // namespace cuvil::ep
