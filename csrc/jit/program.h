// A cuvil::Pointwise program: a validated list of scalar instructions in SSA form.
//
// The text form is the node's `program` attribute, one instruction a string: `<op>.<dtype> <operand>*`. An operand is
// the index of an earlier instruction; `load.<dtype> k` reads input k and `const.<dtype> 0x<bits>` holds a bit pattern.
// Nothing of the text survives parsing but enums and numbers, so a model file cannot put code into a kernel.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "jit/pw_op.h"

namespace cuvil::jit {

// Bounds that keep a kernel's parameters under 4 KiB and its compilation under seconds.
constexpr int kMaxInstructions = 1024;
constexpr int kMaxInputs = 32;
constexpr int kMaxOutputs = 16;

struct Instr {
  PwOp op = PwOp::kLoad;
  DType dtype = DType::kUndefined;  // of the result
  int num_args = 0;
  std::array<int, 3> args{};  // indices of earlier instructions
  int input = 0;              // kLoad: which input
  uint64_t bits = 0;          // kConst: the value's bit pattern

  bool operator==(const Instr&) const = default;
};

struct Program {
  std::vector<DType> inputs;
  std::vector<Instr> code;
  std::vector<int> outputs;  // the instruction each output holds

  DType output_dtype(size_t i) const { return code[static_cast<size_t>(outputs[i])].dtype; }
  bool operator==(const Program&) const = default;
};

// Throws Error(kInvalidArgument), naming the instruction, what was found and what is required, unless the program is
// well formed: known ops, operands earlier than their use, arities, dtype rules, loads that agree with `inputs`,
// output indices in range and the limits above.
void validate(const Program& program);

// Parses and validates. `inputs` are the dtypes of the node's inputs.
Program parse_program(const std::vector<std::string>& text, const std::vector<int64_t>& outputs,
                      const std::vector<DType>& inputs);

// The text form of one instruction, as parse_program reads it.
std::string to_string(const Instr& instr);

}  // namespace cuvil::jit
