// The Op behind cuvil::Pointwise and every standard elementwise op: runs a validated program.
#pragma once

#include <vector>

#include "jit/program.h"
#include "jit/specialise.h"
#include "ops/op.h"

namespace cuvil {

class PointwiseOp : public Op {
 public:
  // `inputs`: the node's input each program input reads. The program must have passed jit::validate.
  PointwiseOp(jit::Program program, std::vector<int> inputs);

  // Every output has the broadcast shape of the program's inputs.
  void compute(OpContext& ctx) override;

 private:
  struct Launch {
    std::vector<Dims> shapes;
    bool aligned = false;
    jit::Plan plan;
    cudaKernel_t kernel = nullptr;
  };

  bool known(const Launch& launch) const;
  Launch& prepare(const DeviceInfo& device);

  jit::Program program_;
  std::vector<int> input_index_;
  // Launches of the last few shapes, so that a run costs no planning: models alternate between a handful.
  std::vector<Launch> launches_;
  size_t current_ = 0, next_ = 0;
  // Of the run in progress; members so that a run allocates nothing.
  std::vector<Tensor> inputs_, outputs_;
};

}  // namespace cuvil
