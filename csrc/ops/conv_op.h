// What Conv and cuvil::FusedConv share: shapes, weights in the engine's order, one call of the engine.
#pragma once

#include "ops/conv_engine.h"
#include "ops/window_attr.h"

namespace cuvil {

class ConvOp : public Op {
 public:
  // weights_last: W is [K, kernel..., C/groups] instead of ONNX's [K, C/groups, kernel...]; with channels_last only.
  ConvOp(const NodeView& node, bool channels_last, ActivationParams activation, bool weights_last = false)
      : window_(window_attributes(node)),
        groups_(node.get<int64_t>("group", 1)),
        channels_last_(channels_last),
        weights_last_(weights_last),
        activation_(activation) {}

  void compute(OpContext& ctx) override;
  // Keeps channels-last weights when the layout asks for them and they differ from ONNX's order.
  bool prepack(int input, const Tensor& weight, cudaStream_t stream) override;

 private:
  enum Input { kX, kW, kBias, kZ };

  bool needs_packing(const Dims& w) const;
  static void pack(const Tensor& w, void* out, cudaStream_t stream);
  const void* weights(OpContext& ctx, Dims* shape) const;

  WindowAttributes window_;
  int64_t groups_;
  bool channels_last_, weights_last_;
  ActivationParams activation_;
  DeviceBuffer packed_;
  Dims packed_shape_;  // the original [K, C/groups, kernel...]
};

// Types and ranks, as far as they are known: "" or the reason.
std::string conv_reason(const NodeView& node, int num_inputs);

}  // namespace cuvil
