// cuvil::Pointwise: any chain or small graph of elementwise operations, as one kernel.
#include <numeric>

#include "generated/ops.inc"
#include "ops/pointwise_op.h"

namespace cuvil {
namespace {

jit::Program parse(const NodeView& node) {
  std::vector<std::string> text;
  std::vector<int64_t> outputs;
  require(node.find(spec::Pointwise::Attr::program, &text), "attribute `program` (a list of strings) is missing");
  require(node.find(spec::Pointwise::Attr::outputs, &outputs), "attribute `outputs` (a list of integers) is missing");
  require(static_cast<int>(outputs.size()) == node.num_outputs(), "attribute `outputs` has ", outputs.size(),
          " entries, the node has ", node.num_outputs(), " outputs");
  std::vector<DType> inputs;
  for (int i = 0; i < node.num_inputs(); ++i) {
    require(node.has_input(i), "input ", i, " is absent; Pointwise has no optional inputs");
    inputs.push_back(node.input_dtype(i));
  }
  jit::Program program = jit::parse_program(text, outputs, inputs);
  for (int o = 0; o < node.num_outputs(); ++o) {
    require(node.has_output(o), "output ", o, " is absent; Pointwise has no optional outputs");
    const DType have = program.output_dtype(static_cast<size_t>(o));
    require(have == node.output_dtype(o), "output ", o, " is ", name_of(node.output_dtype(o)),
            " in the graph, the program gives ", name_of(have));
  }
  return program;
}

std::string supports(const NodeView& node) {
  try {
    parse(node);
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

std::unique_ptr<Op> create(const NodeView& node) {
  std::vector<int> inputs(static_cast<size_t>(node.num_inputs()));
  std::iota(inputs.begin(), inputs.end(), 0);
  return std::make_unique<PointwiseOp>(parse(node), std::move(inputs));
}

std::vector<std::pair<int, int>> inplace_pairs() {
  // A thread reads its elements of every input before it writes any output, so an output may take the place of any
  // input of its shape. ONNX Runtime checks shape and element size, and that nobody else needs the input.
  std::vector<std::pair<int, int>> out;
  for (int o = 0; o < 2; ++o)
    for (int i = 0; i < 8; ++i) out.emplace_back(i, o);
  return out;
}

const Register pointwise(OpEntry{.domain = spec::kDomain,
                                 .type = spec::Pointwise::kName,
                                 .since = spec::Pointwise::kSince,
                                 .until = spec::kVersion,
                                 .supports = supports,
                                 .create = create,
                                 .may_inplace = inplace_pairs()});

}  // namespace
}  // namespace cuvil
