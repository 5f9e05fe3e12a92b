"""Unsqueeze of an Unsqueeze."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from cuvil_onnx.passes.simplify._base import SimplifyRule
from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.rule import Match, Refusal, Replacement


class Unsqueeze(SimplifyRule):
    """Exact. All axes are inserted at once; the inner node goes when nothing else reads it."""

    name = "unsqueeze"
    roots = (("", "Unsqueeze"),)

    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        inner = ctx.producer(node.inputs[0], "Unsqueeze")
        outer_axes = axes_of(node, ctx)
        inner_axes = None if inner is None else axes_of(inner, ctx)
        if inner is None or outer_axes is None or inner_axes is None:
            return None
        rank = ctx.rank(node.outputs[0])
        assert rank is not None
        kept = [axis for axis in range(rank) if axis not in outer_axes]
        axes = sorted([*outer_axes, *(kept[axis] for axis in inner_axes)])
        own = (inner,) if ctx.single_user(inner.outputs[0]) is node else ()
        return Match(node, (node, *own), values={"x": inner.inputs[0]}, attrs={"axes": axes})

    def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
        x, axes = match.values["x"], match.attrs["axes"]
        like = match.root.outputs[0]
        if ctx.opset() >= 13:
            made = ctx.node("Unsqueeze", [x, ctx.initializer(np.array(axes, np.int64), "axes")], like=like)
        else:
            made = ctx.node("Unsqueeze", [x], {"axes": axes}, like=like)
        return Replacement((made,), made.outputs)


def axes_of(node: ir.Node, ctx: GraphContext) -> list[int] | None:
    """The axes of the result that an Unsqueeze inserts, from 0 on; None when they are not known."""
    given = ctx.attr(node, "axes")
    axes = list(given) if given is not None else ctx.ints(node.inputs[1] if len(node.inputs) > 1 else None)
    rank = ctx.rank(node.outputs[0])
    if axes is None or rank is None or ctx.rank(node.inputs[0]) != rank - len(axes):
        return None
    return [axis + rank if axis < 0 else axis for axis in axes]
