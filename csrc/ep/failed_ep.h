// Stands in for an execution provider that could not be made, to report why.
#pragma once

#include <memory>

#include "ep/ep.h"

namespace cuvil::ep {

// ONNX Runtime's Python layer answers an error of CreateEp by running the session on the CPU instead, which a user who
// asked for a GPU must not get. It does not do that for an error of a later step: this EP fails the first one that
// ORT reports.
class FailedEp : public EpBase {
 public:
  explicit FailedEp(OrtStatus* why);  // takes the status

 private:
  OrtStatus* again() const;
  const Ort::Status why_;
};

}  // namespace cuvil::ep
