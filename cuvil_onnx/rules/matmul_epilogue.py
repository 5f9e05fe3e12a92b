"""Takes bias, residual and activation into the matrix product before them.

Before: MatMul(A, B) with B of rank 2, or Gemm(A, B, C) with alpha = beta = 1; + bias [N], + residual of the result's
        shape, activation (one operator, or a written-out Swish, HardSwish or Mish).
After:  cuvil::FusedMatMul(A, B, bias, Z).
Exactness: rounding; 16-bit results are rounded once instead of after every step.
"""

from __future__ import annotations

import onnx_ir as ir

from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.rule import Exactness, Match, Phase, Refusal, Replacement, Rule
from cuvil_onnx.rules._common import TENSOR_CORE_TYPES, dims, make, same_shape, vector
from cuvil_onnx.rules._epilogue import follow, merged_bias


class MatMulEpilogue(Rule):
    """See the module's text."""

    name = "matmul_epilogue"
    phase = Phase.EPILOGUE
    exactness = Exactness.ROUNDING
    roots = (("", "MatMul"), ("", "Gemm"))

    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        result = node.outputs[0]
        left, right = dims(node.inputs[0], ctx), dims(node.inputs[1], ctx)
        if ctx.dtype(result) not in TENSOR_CORE_TYPES or right is None or len(right) != 2:
            return None
        trans_b = int(ctx.attr(node, "transB", 0))
        columns = right[0 if trans_b else 1]

        def is_bias(value: ir.Value) -> bool:
            rank = None if left is None else len(left)
            return ctx.dtype(value) == ctx.dtype(result) and vector(value, columns, ctx, rank=rank)

        bias = residual = None
        c = node.inputs[2] if node.op_type == "Gemm" and len(node.inputs) > 2 else None
        if c is not None:
            if is_bias(c):
                bias = c
            elif same_shape(c, result, ctx):
                residual = c
        epilogue = follow(result, is_bias, ctx, bias, residual)
        if not epilogue.nodes:
            return epilogue.nearly
        if left is None or len(left) < 2:
            return Refusal("the rank of A is not known to be 2 or more", node.inputs[0])
        problem = self._unusual(node, c, bias or residual, ctx)
        if problem is not None:
            return problem
        if any(ctx.rank(b) != 1 and not ctx.is_constant(b) for b in epilogue.biases):
            return Refusal("the bias is computed and not of rank 1", epilogue.biases[0])
        attrs = {"transB": trans_b, "activation": epilogue.activation, "activation_params": epilogue.params}
        values = {"residual": epilogue.residual}
        nodes = (node, *epilogue.nodes)
        return Match(node, nodes, (epilogue.output,), values, {"node": attrs, "biases": epilogue.biases})

    def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
        a, b = match.root.inputs[:2]
        dtype = ctx.dtype(match.root.outputs[0])
        assert dtype is not None
        bias = merged_bias(match.attrs["biases"], ctx, "bias")
        inputs = [a, b, bias, match.values["residual"]]
        node, function = make("FusedMatMul", inputs, match.attrs["node"], ctx, dtype, match.outputs)
        return Replacement((node,), node.outputs, (function,))

    def _unusual(self, node: ir.Node, c: ir.Value | None, used: ir.Value | None, ctx: GraphContext) -> Refusal | None:
        """What of a Gemm the fused op cannot say."""
        if node.op_type != "Gemm":
            return None
        if ctx.attr(node, "transA", 0):
            return Refusal("A is transposed", node)
        if ctx.attr(node, "alpha", 1.0) != 1.0 or (c is not None and ctx.attr(node, "beta", 1.0) != 1.0):
            return Refusal("alpha or beta is not 1", node)
        if c is not None and used is None:
            return Refusal("C is neither a bias of N elements nor of the result's shape", c)
        return None
