"""Lets elementwise operators add leading axes themselves.

Before: f(Unsqueeze(x, [0, 1, ..]), y), the axes in front of x, and y of as many dimensions as the result.
After:  f(x, y); broadcasting puts axes of size 1 in front.
Exactness: exact.
"""

from __future__ import annotations

import onnx_ir as ir

from cuvil_onnx.passes.simplify.unsqueeze import axes_of
from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.rule import Exactness, Match, Phase, Refusal, Replacement, Rule

ELEMENTWISE = (
    *("Add", "Sub", "Mul", "Div", "And", "Or", "Where"),
    *("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"),
)


class LeadingAxes(Rule):
    """See the module's text."""

    name = "leading_axes"
    phase = Phase.EPILOGUE
    exactness = Exactness.EXACT
    roots = tuple(("", op) for op in ELEMENTWISE)

    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        if ctx.opset() < 7:
            return None  # broadcasting was an attribute
        full = ctx.rank(node.outputs[0])
        for index, value in enumerate(node.inputs):
            widen = ctx.producer(value, "Unsqueeze")
            axes = None if widen is None else axes_of(widen, ctx)
            if widen is None or axes is None or sorted(axes) != list(range(len(axes))):
                continue
            others = [v for i, v in enumerate(node.inputs) if i != index]
            if full is not None and any(ctx.rank(v) == full for v in others):
                inputs = {f"x{i}": widen.inputs[0] if i == index else v for i, v in enumerate(node.inputs)}
                own = (widen,) if ctx.single_user(widen.outputs[0]) is node else ()  # unused, it would read x still
                return Match(node, (node, *own), values=inputs)
        return None

    def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
        node = match.root
        attrs = {name: a.value for name, a in node.attributes.items()}
        made = ctx.node(node.op_type, list(match.values.values()), attrs, like=node.outputs[0])
        return Replacement((made,), made.outputs)
