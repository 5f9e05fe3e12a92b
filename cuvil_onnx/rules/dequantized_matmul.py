"""Multiplies by quantized weights as they are, without writing them out as floats.

Before: MatMul, Gemm or cuvil::FusedMatMul by DequantizeLinear(codes, scales, zero points), all constant, with codes of
        4 or 8 bits and a scale for groups of rows, columns or the whole weight; any order of axes, behind Transpose and
        Cast. 8-bit codes that lie within 4 bits become 4-bit ones. 8-bit weights of activations that are quantized
        themselves stay: a product of integers is meant.
After:  cuvil::MatMulInt4, with the bias, residual and activation that the product had.
Exactness: rounding; scales are rounded where the product has a smaller type than DequantizeLinear.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.rule import Exactness, Match, Phase, Refusal, Replacement, Rule
from cuvil_onnx.rules._codes import FOUR_BITS, MAX_STEPS, operands, weight_of
from cuvil_onnx.rules._common import dims, make, same_shape, vector

MIN_OPSET = 21
"""What the op's body needs."""

_MOVES = ("Reshape", "Transpose", "Identity", "Squeeze", "Unsqueeze", "Flatten")


class DequantizedMatMul(Rule):
    """See the module's text."""

    name = "dequantized_matmul"
    phase = Phase.STRUCTURAL  # before projections of one tensor are joined
    exactness = Exactness.ROUNDING
    roots = (("", "MatMul"), ("", "Gemm"), ("cuvil", "FusedMatMul"))

    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        a, b = node.inputs[:2]
        if a is None or ctx.opset() < MIN_OPSET:
            return None
        weight = weight_of(b, ctx, bool(ctx.attr(node, "transB", 0)))
        if weight is None or isinstance(weight, Refusal):
            return weight
        if ctx.dtype(weight.node.inputs[0]) not in FOUR_BITS and _quantized(a, ctx):
            return None
        rank = ctx.rank(a)
        if rank is None or rank < 2:
            return Refusal("the rank of A is not known to be 2 or more", a)
        attrs: dict[str, Any] = {"block_size": weight.block_size}
        bias = residual = None
        if node.op_type == "FusedMatMul":
            bias, residual = (*node.inputs, None, None)[2:4]
            attrs |= {key: ctx.attr(node, key) for key in ("activation", "activation_params")}
        elif node.op_type == "Gemm":
            c = node.inputs[2] if len(node.inputs) > 2 else None
            if ctx.attr(node, "transA", 0) or ctx.attr(node, "alpha", 1.0) != 1.0:
                return Refusal("the Gemm transposes A, or its alpha is not 1", node)
            if c is not None and ctx.attr(node, "beta", 1.0) != 1.0:
                return Refusal("the Gemm's beta is not 1", node)
            if c is not None and ctx.rank(c) == 1 and vector(c, (dims(node.outputs[0], ctx) or (None,))[-1], ctx):
                bias = c
            elif c is not None and same_shape(c, node.outputs[0], ctx):
                residual = c
            elif c is not None:
                return Refusal("the Gemm's C is neither a bias of N elements nor of the result's shape", c)
        if (bias or residual) is not None and ctx.rank(weight.node.inputs[0]) != 2:
            return Refusal("a weight of rank 3 with a bias or residual", node)
        return Match(
            node,
            (node, *weight.own),
            values={"a": a, "bias": bias, "z": residual},
            attrs={"node": attrs, "weight": weight},
        )

    def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
        weight = match.attrs["weight"]
        graph = match.root.graph
        assert isinstance(graph, ir.Graph)
        parts = operands(weight, graph, ctx)
        inputs = [match.values["a"], parts.codes, parts.scales, parts.zero_points, None]
        inputs += [match.values["bias"], match.values["z"]]
        like = match.root.outputs
        node, function = make("MatMulInt4", inputs, match.attrs["node"], ctx, weight.dtype, like)
        return Replacement((node,), node.outputs, (function,))


def _quantized(value: ir.Value, ctx: GraphContext) -> bool:
    """Whether a tensor is made of quantized numbers."""
    node = ctx.producer(value)
    for _ in range(MAX_STEPS):
        if node is None or node.domain or node.op_type not in _MOVES:
            break
        node = ctx.producer(node.inputs[0])
    return node is not None and node.domain == "" and node.op_type == "DequantizeLinear"
