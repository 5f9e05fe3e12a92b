"""Expand (and Tile) to the shape the input already has."""

from __future__ import annotations

import onnx_ir as ir

from cuvil_onnx.passes.simplify._base import SimplifyRule, drop
from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.rule import Match, Refusal


class Expand(SimplifyRule):
    """Exact. Only when the result is known to have the input's shape, or all factors are 1 and the rank stays.

    Sizes of one name are equal, those of different graph inputs too: ONNX demands that of whoever runs the model (IR
    specification, "static tensor shapes"). Half of what torch's legacy exporter builds masks from rests on it.
    """

    name = "expand"
    roots = (("", "Expand"), ("", "Tile"))

    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        x = node.inputs[0]
        factors = ctx.ints(node.inputs[1]) if len(node.inputs) > 1 else None
        rank = ctx.rank(x)
        ones = factors is not None and rank is not None and len(factors) <= rank and set(factors) <= {1}
        return drop(node, x) if ones or ctx.same_shape(x, node.outputs[0]) else None
