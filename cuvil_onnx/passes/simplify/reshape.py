"""Reshapes that keep the shape, and chains of reshapes."""

from __future__ import annotations

import onnx_ir as ir

from cuvil_onnx.passes.simplify._base import SimplifyRule, drop
from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.rule import Match, Refusal, Replacement

_RESHAPERS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")


class Reshape(SimplifyRule):
    """Exact.

    Before: Reshape/Flatten/Squeeze/Unsqueeze whose result has the shape of its input; Reshape(Reshape(x), shape).
    After:  x; Reshape(x, shape).

    A chain is kept when the outer shape copies dimensions of the inner result (0 without ``allowzero``).
    """

    name = "reshape"
    roots = tuple(("", op) for op in _RESHAPERS)

    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        x = node.inputs[0]
        if x is None:
            return None
        if ctx.same_shape(x, node.outputs[0]):
            return drop(node, x)
        inner = ctx.producer(x)
        if node.op_type != "Reshape" or inner is None or inner.domain or inner.op_type not in _RESHAPERS:
            return None
        target = ctx.ints(node.inputs[1])
        if target is None:
            return None
        if 0 in target and not ctx.attr(node, "allowzero", 0):
            return Refusal("the outer shape copies a dimension of the inner result", node.inputs[1])
        return Match(node, (node,), values={"x": inner.inputs[0], "shape": node.inputs[1]})

    def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
        if "shape" not in match.values:
            return super().rewrite(match, ctx)
        attrs = {k: a.value for k, a in match.root.attributes.items()}
        node = ctx.node("Reshape", [match.values["x"], match.values["shape"]], attrs, like=match.root.outputs[0])
        return Replacement((node,), node.outputs)
