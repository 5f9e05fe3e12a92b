// If, Loop and Scan. ONNX Runtime executes them; that they are taken keeps what goes into and comes out of their bodies
// on the GPU, and models whose every node must run here loadable.
#include <algorithm>

#include "ops/op.h"

namespace cuvil {
namespace {

std::string only_tensors(const NodeView& node) {
  for (int i = 0; i < node.num_inputs(); ++i)
    if (node.has_input(i) && node.input_dtype(i) == DType::kUndefined)
      return concat("input ", i, " is not a tensor of a type that is known here");
  for (int i = 0; i < node.num_outputs(); ++i)
    if (node.has_output(i) && node.output_dtype(i) == DType::kUndefined)
      return concat("output ", i, " is not a tensor of a type that is known here");
  return "";
}

std::string scan_refusal(const NodeView& node) {
  for (const char* name : {"scan_input_axes", "scan_output_axes"}) {
    const auto axes = node.get(name, std::vector<int64_t>{});
    if (std::any_of(axes.begin(), axes.end(), [](int64_t a) { return a != 0; }))
      return concat("attribute ", name, " holds axes other than 0");
  }
  return only_tensors(node);
}

const Register branch{OpEntry{
    .type = "If", .since = 1, .supports = only_tensors, .cpu_inputs = {0}, .control_flow = ControlFlow::kBranch}};
const Register loop{OpEntry{
    .type = "Loop", .since = 1, .supports = only_tensors, .cpu_inputs = {0, 1}, .control_flow = ControlFlow::kLoop}};
const Register scan{OpEntry{.type = "Scan", .since = 9, .supports = scan_refusal, .control_flow = ControlFlow::kScan}};

}  // namespace
}  // namespace cuvil
