"""Makes one node of a region of elementwise nodes.

Before: any connected elementwise nodes (arithmetic, comparisons, activations, casts), with broadcasting and several
        outputs, each of the shape that all inputs broadcast to; shape arithmetic and single nodes stay.
After:  cuvil::Pointwise, whose program says the same instruction by instruction; constants become part of it.
Exactness: exact; every intermediate result is rounded as before.
"""

from __future__ import annotations

import onnx_ir as ir

import custom_ops
from custom_ops.program import elementwise_ops
from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.rule import Exactness, Match, Phase, Refusal, Replacement, Rule
from cuvil_onnx.rules._common import name_node
from cuvil_onnx.rules._normalized import normalizations
from cuvil_onnx.rules._region import Region, grow
from cuvil_onnx.rules._region_facts import Facts

LOWEST_OPSET = 7  # before it, broadcasting was an attribute


class Pointwise(Rule):
    """See the module's text."""

    name = "pointwise"
    phase = Phase.POINTWISE
    exactness = Exactness.EXACT
    roots = tuple(elementwise_ops())

    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        facts = Facts(ctx)
        if ctx.opset() < LOWEST_OPSET or not facts.cost(node):
            return None
        region = grow(node, facts)
        outputs = region.outputs
        if len(region.nodes) < 2 or not outputs:
            return None
        return Match(node, region.nodes, outputs, attrs={"region": region})

    def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
        region: Region = match.attrs["region"]
        dtype = ctx.dtype(match.outputs[0])
        body = custom_ops.Region(region.nodes, match.outputs, normalizations(region, ctx))
        node, function = custom_ops.make(
            "Pointwise",
            region.inputs,
            len(match.outputs),
            {},
            opset=ctx.opset(),
            dtype=dtype or ir.DataType.FLOAT,
            body=body,
            cache=ctx.memo,
        )
        name_node(node, ctx)
        return Replacement((node,), node.outputs, (function,))
