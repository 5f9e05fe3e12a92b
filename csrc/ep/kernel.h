// An Op behind ORT's kernel interface.
#pragma once

#include <memory>
#include <string>
#include <vector>

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
  void compute(OrtKernelContext* context);
  bool prepack(const OrtValue* weight, int input);

  Ep& ep_;
  const OpEntry& entry_;
  std::string where_;                         // "node 'x' (Relu)"
  std::vector<bool> has_input_, has_output_;  // inputs that the op packed are gone
  std::unique_ptr<Op> op_;
};

}  // namespace cuvil::ep
