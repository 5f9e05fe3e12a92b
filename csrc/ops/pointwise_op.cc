#include "ops/pointwise_op.h"

#include <utility>

#include "jit/codegen.h"
#include "jit/kernel.h"

namespace cuvil {
namespace {

constexpr size_t kMaxLaunches = 8;

bool aligned16(const Tensor& t) { return reinterpret_cast<uintptr_t>(t.data) % 16 == 0; }

}  // namespace

PointwiseOp::PointwiseOp(jit::Program program, std::vector<int> inputs)
    : program_(std::move(program)),
      input_index_(std::move(inputs)),
      inputs_(program_.inputs.size()),
      outputs_(program_.outputs.size()) {}

bool PointwiseOp::known(const Launch& launch) const {
  for (size_t k = 0; k < inputs_.size(); ++k)
    if (launch.shapes[k] != inputs_[k].shape) return false;
  return true;
}

PointwiseOp::Launch& PointwiseOp::prepare(const DeviceInfo& device) {
  // Outputs are the EP's own memory and inputs mostly are; only a caller's bound buffer can be off 16 bytes. A single
  // element is read as a scalar wherever it lies.
  bool aligned = true;
  for (const Tensor& t : inputs_) aligned = aligned && (aligned16(t) || t.size() == 1);
  for (const Tensor& t : outputs_) aligned = aligned && aligned16(t);
  const auto usable = [&](const Launch& launch) { return launch.kernel && launch.aligned == aligned && known(launch); };
  if (current_ < launches_.size() && usable(launches_[current_])) return launches_[current_];
  for (current_ = 0; current_ < launches_.size(); ++current_)
    if (usable(launches_[current_])) return launches_[current_];

  Launch launch;
  for (const Tensor& t : inputs_) launch.shapes.push_back(t.shape);
  launch.aligned = aligned;
  launch.plan = jit::make_plan(program_, launch.shapes, aligned, {device.sm, device.sm_count, device.l2_bytes});
  launch.kernel = jit::get_kernel(jit::generate(program_, launch.plan.spec), jit::kKernelName, device.sm);
  if (launches_.size() < kMaxLaunches) launches_.emplace_back();
  current_ = next_++ % kMaxLaunches;
  return launches_[current_] = std::move(launch);
}

void PointwiseOp::compute(OpContext& ctx) {
  Dims shape;
  for (size_t k = 0; k < inputs_.size(); ++k) {
    inputs_[k] = ctx.input(input_index_[k]);
    shape = k == 0 ? inputs_[k].shape : broadcast(shape, inputs_[k].shape);
  }
  for (size_t o = 0; o < outputs_.size(); ++o) outputs_[o] = ctx.output(static_cast<int>(o), shape);
  if (shape.size() == 0) return;

  Launch& launch = prepare(ctx.device());
  const jit::ParamSlots slots(program_, launch.plan.spec);
  std::vector<uint64_t>& params = launch.plan.params;
  for (size_t k = 0; k < inputs_.size(); ++k)
    params[static_cast<size_t>(slots.input(static_cast<int>(k)))] = reinterpret_cast<uint64_t>(inputs_[k].data);
  for (size_t o = 0; o < outputs_.size(); ++o)
    params[static_cast<size_t>(slots.output(static_cast<int>(o)))] = reinterpret_cast<uint64_t>(outputs_[o].data);
  // The kernel takes the whole array by value: one argument, copied by the launch.
  void* arguments[] = {params.data()};
  CUVIL_CUDA(cudaLaunchKernel(reinterpret_cast<const void*>(launch.kernel), dim3(launch.plan.blocks),
                              dim3(jit::kThreads), arguments, 0, ctx.stream()));
}

}  // namespace cuvil
