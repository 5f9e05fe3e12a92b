"""Adds axes before arithmetic with a scalar instead of behind it, next to the arithmetic that follows.

Before: Unsqueeze(f(x, c)), c of no dimensions, f elementwise, which only an elementwise operator reads.
After:  f(Unsqueeze(x), c); a pointwise region then takes f in.
Exactness: exact.
"""

from __future__ import annotations

import onnx_ir as ir

from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.rule import Exactness, Match, Phase, Refusal, Replacement, Rule
from cuvil_onnx.rules.leading_axes import ELEMENTWISE


class UnsqueezeFirst(Rule):
    """See the module's text."""

    name = "unsqueeze_first"
    phase = Phase.EPILOGUE
    exactness = Exactness.EXACT
    roots = (("", "Unsqueeze"),)

    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        inner = ctx.producer(node.inputs[0])
        user = ctx.single_user(node.outputs[0])
        if inner is None or user is None or user.domain or user.op_type not in ELEMENTWISE:
            return None
        if inner.domain or inner.op_type not in ("Add", "Sub", "Mul", "Div") or len(inner.inputs) != 2:
            return None
        if ctx.single_user(inner.outputs[0]) is not node:
            return None
        ranks = [ctx.rank(v) for v in inner.inputs]
        if ranks.count(0) != 1 or None in ranks:
            return None
        place = 1 - ranks.index(0)
        values = {f"x{i}": v for i, v in enumerate(inner.inputs)}
        return Match(node, (node, inner), values=values, attrs={"place": place, "inner": inner})

    def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
        node, inner, place = match.root, match.attrs["inner"], match.attrs["place"]
        inputs = list(match.values.values())
        attrs = {name: a.value for name, a in node.attributes.items()}
        x = inputs[place]
        assert x is not None
        widen = ctx.node("Unsqueeze", [x, *node.inputs[1:]], attrs, like=node.outputs[0])
        widen.outputs[0].type = x.type
        inputs[place] = widen.outputs[0]
        made = ctx.node(inner.op_type, inputs, {n: a.value for n, a in inner.attributes.items()}, like=node.outputs[0])
        return Replacement((widen, made), made.outputs)
