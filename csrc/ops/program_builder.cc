#include "ops/program_builder.h"

#include <bit>
#include <utility>

#include "ops/pointwise_op.h"

namespace cuvil {

using jit::Instr;
using jit::PwOp;

int ProgramBuilder::load(int i) {
  require(node_.has_input(i), "input ", i, " is absent");
  const DType dtype = node_.input_dtype(i);
  require(jit::set_of(dtype) != 0, "input ", i, " is ", name_of(dtype), ", required a number or bool");
  Instr instr;
  instr.op = PwOp::kLoad;
  instr.dtype = dtype;
  instr.input = static_cast<int>(inputs_.size());
  inputs_.push_back(i);
  program_.inputs.push_back(dtype);
  program_.code.push_back(instr);
  return static_cast<int>(program_.code.size()) - 1;
}

int ProgramBuilder::constant(DType dtype, double value) {
  Instr instr;
  instr.op = PwOp::kConst;
  instr.dtype = dtype;
  const size_t bytes = size_of(dtype);
  if (dtype == DType::kF64) {
    instr.bits = std::bit_cast<uint64_t>(value);
  } else if (is_float(dtype)) {
    instr.dtype = DType::kF32;
    instr.bits = std::bit_cast<uint32_t>(static_cast<float>(value));
  } else {
    instr.bits = static_cast<uint64_t>(static_cast<int64_t>(value));
    if (bytes < 8) instr.bits &= (uint64_t{1} << 8 * bytes) - 1;
  }
  program_.code.push_back(instr);
  return cast(static_cast<int>(program_.code.size()) - 1, dtype);
}

int ProgramBuilder::emit(PwOp op, DType dtype, std::initializer_list<int> args) {
  Instr instr;
  instr.op = op;
  instr.dtype = dtype;
  for (int a : args) instr.args[static_cast<size_t>(instr.num_args++)] = a;
  program_.code.push_back(instr);
  return static_cast<int>(program_.code.size()) - 1;
}

int ProgramBuilder::cast(int value, DType dtype) {
  return dtype_of(value) == dtype ? value : emit(PwOp::kCast, dtype, {value});
}

Elementwise ProgramBuilder::finish(int value) {
  program_.outputs = {value};
  jit::validate(program_);
  const DType want = node_.output_dtype(0);
  require(dtype_of(value) == want, "the result is ", name_of(dtype_of(value)), ", the graph says ", name_of(want));
  return {std::move(program_), std::move(inputs_)};
}

std::string elementwise_refusal(const NodeView& node, BuildElementwise build) {
  try {
    build(node);
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

std::unique_ptr<Op> create_elementwise(const NodeView& node, BuildElementwise build) {
  Elementwise made = build(node);
  return std::make_unique<PointwiseOp>(std::move(made.program), std::move(made.inputs));
}

std::vector<std::pair<int, int>> elementwise_inplace() { return {{0, 0}, {1, 0}, {2, 0}, {3, 0}}; }

}  // namespace cuvil
