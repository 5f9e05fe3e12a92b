"""Computes cosines and sines once for each pair of elements that they rotate.

Before: cuvil::RotaryEmbedding(x, cos, sin), cos = Cos(Concat(f, f)), sin = Sin(Concat(f, f)), perhaps scaled or cast.
After:  the same with Cos(f), Sin(f) and per_pair; all layers share them.
Exactness: exact; both elements of a pair were given the same numbers.
"""

from __future__ import annotations

import onnx_ir as ir

from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.rule import Exactness, Match, Phase, Refusal, Replacement, Rule
from cuvil_onnx.rules._again import done_again
from cuvil_onnx.rules._common import dims, make, scalar_factor

MAX_STEPS = 4


class RotaryPairs(Rule):
    """See the module's text."""

    name = "rotary_pairs"
    phase = Phase.STRUCTURAL
    exactness = Exactness.EXACT
    roots = (("cuvil", "RotaryEmbedding"),)

    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        if ctx.attr(node, "per_pair") or ctx.attr(node, "interleaved"):
            return None
        ways = [_way(value, op, ctx) for value, op in zip(node.inputs[1:3], ("Cos", "Sin"), strict=True)]
        halves = [_half(way[0].inputs[0] if way else None, ctx) for way in ways]
        if None in halves:
            return None
        values = {"cos": halves[0], "sin": halves[1]}
        return Match(node, (node,), node.outputs, values, {"ways": ways})

    def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
        node = match.root
        dtype = ctx.dtype(node.inputs[0])
        assert dtype is not None
        nodes: list[ir.Node] = []
        factors = []
        for name, way in zip(("cos", "sin"), match.attrs["ways"], strict=True):
            value = match.values[name]
            for step in way:
                assert value is not None
                whole = next(v for v in step.inputs if v is not None and not ctx.is_constant(v))
                turned = done_again(step, [value if v is whole else v for v in step.inputs], nodes, ctx)
                turned.shape = None if value.shape is None else value.shape.copy()
                value = turned
            factors.append(value)
        attrs = {name: attr.value for name, attr in node.attributes.items()} | {"per_pair": 1}
        fused, function = make("RotaryEmbedding", [node.inputs[0], *factors], attrs, ctx, dtype, match.outputs)
        return Replacement((*nodes, fused), fused.outputs, (function,))


def _way(value: ir.Value | None, op: str, ctx: GraphContext) -> list[ir.Node]:
    """The nodes from `op` to `value`, first to last, that work on each element alone; empty when there are others."""
    way: list[ir.Node] = []
    for _ in range(MAX_STEPS):
        node = ctx.producer(value)
        if node is None or node.domain:
            return []
        way.insert(0, node)
        if node.op_type == op:
            return way
        scaled = scalar_factor(node, ctx)
        if scaled is None and node.op_type != "Cast":
            return []
        value = node.inputs[0] if scaled is None else scaled[0]
    return []


def _half(value: ir.Value | None, ctx: GraphContext) -> ir.Value | None:
    """f when `value` [.., R] is Concat(f, f) along the last axis."""
    join = ctx.producer(value, "Concat")
    rank = ctx.rank(value)
    if join is None or rank is None or len(join.inputs) != 2 or ctx.attr(join, "axis") not in (-1, rank - 1):
        return None
    half, shape = join.inputs[0], dims(join.inputs[0], ctx)
    return half if half is join.inputs[1] and shape is not None and isinstance(shape[-1], int) else None
