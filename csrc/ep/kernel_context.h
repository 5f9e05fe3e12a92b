// One execution of one node, as its op sees it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ep/ort.h"
#include "ops/op.h"

namespace cuvil::ep {

class Ep;

// What is fixed about a node's inputs and outputs; by index.
struct NodePorts {
  std::vector<bool> has_input;  // false also for weights that the op packed: ORT freed them
  std::vector<bool> has_output;
  std::vector<bool> input_on_host;
  std::vector<bool> output_on_host;
};

class KernelContext : public OpContext {
 public:
  KernelContext(Ep& ep, OrtKernelContext* context, cudaStream_t stream, const NodePorts& ports);
  ~KernelContext() override;
  KernelContext(const KernelContext&) = delete;
  KernelContext& operator=(const KernelContext&) = delete;

  cudaStream_t stream() const override { return stream_; }
  const DeviceInfo& device() const override;
  bool has_input(int i) const override;
  Tensor input(int i) override;
  bool has_output(int i) const override;
  Tensor output(int i, const Dims& shape) override;
  void* scratch(size_t bytes) override;
  bool capturing() const override;
  bool allow_tf32() const override;

 protected:
  std::unique_ptr<SharedState>& shared_slot(std::type_index type) override;

 private:
  Ep& ep_;
  OrtKernelContext* context_;
  const cudaStream_t stream_;
  const NodePorts& ports_;
  std::vector<void*> scratch_;
};

}  // namespace cuvil::ep
