// Standard ops as pointwise programs: a function from a node to a program makes a whole op.
#pragma once

#include <string>
#include <vector>

#include "jit/program.h"
#include "ops/op.h"

namespace cuvil {

// A program and, for each of its inputs, the node's input it reads.
struct Elementwise {
  jit::Program program;
  std::vector<int> inputs;
};

// Appends instructions for one node. Every `int` returned or taken is an instruction's index.
class ProgramBuilder {
 public:
  explicit ProgramBuilder(const NodeView& node) : node_(node) {}

  // Input i of the node; throws when it is absent.
  int load(int i);
  // A constant of dtype f32, f64, bool or an integer type; f16 and bf16 ones are rounded from f32 by the program.
  int constant(DType dtype, double value);
  // Result dtype `dtype`.
  int emit(jit::PwOp op, DType dtype, std::initializer_list<int> args);
  int cast(int value, DType dtype);
  DType dtype_of(int value) const { return program_.code[static_cast<size_t>(value)].dtype; }

  // The program with output 0 = `value`. Throws when it is not valid, or not of the dtype the graph gives the output.
  Elementwise finish(int value);

 private:
  const NodeView& node_;
  jit::Program program_;
  std::vector<int> inputs_;
};

using BuildElementwise = Elementwise (*)(const NodeView&);

// "" or the reason why `build` refuses the node.
std::string elementwise_refusal(const NodeView& node, BuildElementwise build);
std::unique_ptr<Op> create_elementwise(const NodeView& node, BuildElementwise build);
// A thread reads its elements of every input before it writes: the output may replace any input of its shape.
std::vector<std::pair<int, int>> elementwise_inplace();

// The newest opset these ops were checked against.
constexpr int kLatestOpset = 28;

// The entry of ONNX op `type` for node schemas introduced in [since, until].
template <BuildElementwise build>
OpEntry elementwise(const char* type, int since, int until = kLatestOpset, const char* domain = "") {
  return {.domain = domain,
          .type = type,
          .since = since,
          .until = until,
          .supports = [](const NodeView& node) { return elementwise_refusal(node, build); },
          .create = [](const NodeView& node) { return create_elementwise(node, build); },
          .may_inplace = elementwise_inplace()};
}

}  // namespace cuvil
