"""Lets a Gemm over flattened rows work on the tensor itself, whose residual, activation and norm can then be fused.

Before: x [.., K], Reshape [M, K], Gemm with weight [K, N] and bias [N], Reshape [.., N]: torch's Conv1D in GPT-2.
After:  MatMul(x, weight) + bias.
Exactness: rounding; the bias is added to the finished sum.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.rule import Exactness, Match, Phase, Refusal, Replacement, Rule
from cuvil_onnx.rules._common import TENSOR_CORE_TYPES, dims, vector


class GemmRows(Rule):
    """See the module's text."""

    name = "gemm_rows"
    phase = Phase.STRUCTURAL
    exactness = Exactness.ROUNDING
    roots = (("", "Gemm"),)

    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        restore = ctx.single_user(node.outputs[0], "Reshape")
        flatten = ctx.producer(node.inputs[0], "Reshape")
        if restore is None or flatten is None:
            return None
        result, flat = dims(restore.outputs[0], ctx), dims(node.inputs[0], ctx)
        if result is None or flat is None or len(result) < 3:
            return None
        weight, bias = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None
        trans_b = int(ctx.attr(node, "transB", 0))
        if ctx.attr(node, "transA", 0) or ctx.attr(node, "alpha", 1.0) != 1.0:
            return Refusal("A is transposed or alpha is not 1", node)
        if bias is not None and (ctx.attr(node, "beta", 1.0) != 1.0 or not vector(bias, result[-1], ctx, rank=2)):
            return Refusal("beta is not 1, or C is no bias of N elements", bias)
        if trans_b and not ctx.is_constant(weight):
            return Refusal("the transposed weight is computed", weight)
        if ctx.dtype(node.outputs[0]) not in TENSOR_CORE_TYPES:
            return Refusal("the element type is not float32, float16 or bfloat16", node)
        wanted = (*result[:-1], flat[1])
        x = flatten.inputs[0]
        while x is not None and None not in wanted and dims(x, ctx) != wanted:
            inner = ctx.producer(x, "Reshape")
            x = None if inner is None else inner.inputs[0]
        columns = (dims(weight, ctx) or (None,) * 2)[0 if trans_b else 1]
        if x is None or None in wanted or columns is None or columns != result[-1]:
            return Refusal("the reshapes around the product are not known to join and split the leading axes", node)
        # The flattening may serve other readers too, and stays for them.
        own = (flatten,) if ctx.single_user(flatten.outputs[0]) is node else ()
        values = {"x": x, "weight": weight, "bias": bias}
        return Match(node, (*own, node, restore), restore.outputs, values, {"transposed": bool(trans_b)})

    def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
        x, weight, bias = (match.values[name] for name in ("x", "weight", "bias"))
        like = match.outputs[0]
        if match.attrs["transposed"]:
            array, dtype = ctx.constant(weight, max_elements=None), ctx.dtype(weight)
            assert array is not None and dtype is not None
            weight = ctx.initializer(ir.Tensor(np.ascontiguousarray(array.T), dtype=dtype), "weight")
        nodes = [ctx.node("MatMul", [x, weight], like=like)]
        if bias is not None:
            nodes.append(ctx.node("Add", [nodes[0].outputs[0], bias], like=like))
        return Replacement(nodes, nodes[-1].outputs)
