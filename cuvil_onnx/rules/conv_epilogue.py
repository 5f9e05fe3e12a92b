"""Takes bias, residual and activation into the convolution before them.

Before: Conv (or cuvil::FusedConv without activation), + bias [1, C, 1, 1], + residual of the result's shape, activation
        (one operator, or a written-out Swish, HardSwish or Mish).
After:  cuvil::FusedConv(X, W, B, Z).
Exactness: rounding; 16-bit results are rounded once instead of after every step.
"""

from __future__ import annotations

import onnx_ir as ir

from cuvil_onnx.passes.conv_geometry import resolve
from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.rule import Exactness, Match, Phase, Refusal, Replacement, Rule
from cuvil_onnx.rules._common import TENSOR_CORE_TYPES, dims, make, vector
from cuvil_onnx.rules._epilogue import follow, merged_bias


class ConvEpilogue(Rule):
    """See the module's text."""

    name = "conv_epilogue"
    phase = Phase.EPILOGUE
    exactness = Exactness.ROUNDING
    roots = (("", "Conv"), ("cuvil", "FusedConv"))

    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        if node.domain == "cuvil" and ctx.attr(node, "activation"):
            return None
        result = node.outputs[0]
        weight = dims(node.inputs[1], ctx)
        if ctx.dtype(result) not in TENSOR_CORE_TYPES or weight is None or not isinstance(weight[0], int):
            return None
        channels, rank = weight[0], len(weight)
        axis = -1 if ctx.attr(node, "layout") == "NHWC" else 1 - rank

        def is_bias(value: ir.Value) -> bool:
            return ctx.dtype(value) == ctx.dtype(result) and vector(value, channels, ctx, axis=axis, rank=rank)

        bias, residual = (node.inputs[i] if i < len(node.inputs) else None for i in (2, 3))
        epilogue = follow(result, is_bias, ctx, bias, residual)
        if not epilogue.nodes:
            return epilogue.nearly
        geometry = resolve(node, ctx)
        if isinstance(geometry, Refusal):
            return geometry
        attrs = {**geometry, "activation": epilogue.activation, "activation_params": epilogue.params}
        values = {"residual": epilogue.residual}
        nodes = (node, *epilogue.nodes)
        return Match(node, nodes, (epilogue.output,), values, {"node": attrs, "biases": epilogue.biases})

    def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
        x, w = match.root.inputs[:2]
        dtype = ctx.dtype(match.root.outputs[0])
        assert dtype is not None
        bias = merged_bias(match.attrs["biases"], ctx, "conv_bias")
        inputs = [x, w, bias, match.values["residual"]]
        node, function = make("FusedConv", inputs, match.attrs["node"], ctx, dtype, match.outputs)
        return Replacement((node,), node.outputs, (function,))
