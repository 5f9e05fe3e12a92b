"""Takes bias, residual and activation into a product with a quantized weight.

Before: cuvil::MatMulInt4(A, B, ...) without an activation; + bias [N], + residual of the result's shape, activation
        (one operator, or a written-out Swish, HardSwish or Mish).
After:  cuvil::MatMulInt4(A, B, ..., bias, Z).
Exactness: rounding; 16-bit results are rounded once instead of after every step.
"""

from __future__ import annotations

import onnx_ir as ir

from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.rule import Exactness, Match, Phase, Refusal, Replacement, Rule
from cuvil_onnx.rules._common import TENSOR_CORE_TYPES, dims, make, vector
from cuvil_onnx.rules._epilogue import follow, merged_bias

BIAS, RESIDUAL = 5, 6


class Int4Epilogue(Rule):
    """See the module's text."""

    name = "int4_epilogue"
    phase = Phase.EPILOGUE
    exactness = Exactness.ROUNDING
    roots = (("cuvil", "MatMulInt4"),)

    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        result = node.outputs[0]
        left, right = dims(node.inputs[0], ctx), dims(node.inputs[1], ctx)
        if ctx.dtype(result) not in TENSOR_CORE_TYPES or right is None or len(right) != 2:
            return None
        if ctx.attr(node, "activation", ""):
            return None
        bias, residual = (*node.inputs, *[None] * 7)[BIAS : RESIDUAL + 1]
        columns = right[1]

        def is_bias(value: ir.Value) -> bool:
            rank = None if left is None else len(left)
            return ctx.dtype(value) == ctx.dtype(result) and vector(value, columns, ctx, rank=rank)

        epilogue = follow(result, is_bias, ctx, bias, residual)
        if not epilogue.nodes:
            return epilogue.nearly
        if left is None or len(left) < 2:
            return Refusal("the rank of A is not known to be 2 or more", node.inputs[0])
        if any(ctx.rank(b) != 1 and not ctx.is_constant(b) for b in epilogue.biases):
            return Refusal("the bias is computed and not of rank 1", epilogue.biases[0])
        attrs = {"activation": epilogue.activation, "activation_params": epilogue.params}
        values = {"residual": epilogue.residual}
        nodes = (node, *epilogue.nodes)
        return Match(node, nodes, (epilogue.output,), values, {"node": attrs, "biases": epilogue.biases})

    def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
        dtype = ctx.dtype(match.root.outputs[0])
        assert dtype is not None
        weight = (*match.root.inputs, *[None] * 7)[:BIAS]
        inputs = [*weight, merged_bias(match.attrs["biases"], ctx, "bias"), match.values["residual"]]
        attrs = {"block_size": ctx.attr(match.root, "block_size"), **match.attrs["node"]}
        node, function = make("MatMulInt4", inputs, attrs, ctx, dtype, match.outputs)
        return Replacement((node,), node.outputs, (function,))
