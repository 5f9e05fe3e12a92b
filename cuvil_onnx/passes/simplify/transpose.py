"""Transposes that move nothing, and chains of transposes."""

from __future__ import annotations

import onnx_ir as ir

from cuvil_onnx.passes.simplify._base import SimplifyRule, drop
from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.rule import Match, Refusal, Replacement


class Transpose(SimplifyRule):
    """Exact.

    Before: Transpose(x, perm=identity); Transpose(Transpose(x, p), q).
    After:  x; Transpose(x, p o q), or x when the two undo each other.
    """

    name = "transpose"
    roots = (("", "Transpose"),)

    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        perm = permutation(node, ctx)
        if perm is None:
            return None
        if perm == list(range(len(perm))):
            return drop(node, node.inputs[0])
        inner = ctx.producer(node.inputs[0], "Transpose")
        first = None if inner is None else permutation(inner, ctx, len(perm))
        if inner is None or first is None:
            return None
        both = [first[i] for i in perm]
        if both == list(range(len(both))):
            return drop(node, inner.inputs[0])
        return Match(node, (node,), values={"x": inner.inputs[0]}, attrs={"perm": both})

    def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
        if "perm" not in match.attrs:
            return super().rewrite(match, ctx)
        node = ctx.node("Transpose", [match.values["x"]], {"perm": match.attrs["perm"]}, like=match.root.outputs[0])
        return Replacement((node,), node.outputs)


def permutation(node: ir.Node, ctx: GraphContext, rank: int | None = None) -> list[int] | None:
    """The permutation of a Transpose; the default one reverses all axes and needs the rank."""
    perm = ctx.attr(node, "perm")
    if perm is not None:
        return [int(p) for p in perm]
    rank = ctx.rank(node.inputs[0]) if rank is None else rank
    return None if rank is None else list(reversed(range(rank)))
