"""Drops the guard that exporters put around the target of an Expand.

Before: Where(Equal(sizes, -1), ones, sizes), where -1 would have meant "keep" and `sizes` is made of tensor sizes.
After:  sizes.
Exactness: exact; a size is never negative.
"""

from __future__ import annotations

import onnx_ir as ir

from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.pattern import operands
from cuvil_onnx.rewrite.rule import Exactness, Match, Phase, Refusal, Replacement, Rule

MAX_NODES = 64

_FIRST_INPUT = ("Cast", "Identity", "Unsqueeze", "Squeeze", "Reshape", "Gather", "Slice")
_ALL_INPUTS = ("Concat", "Add", "Mul", "Max", "Min")


class ExpandGuard(Rule):
    """See the module's text."""

    name = "expand_guard"
    phase = Phase.STRUCTURAL
    exactness = Exactness.EXACT
    roots = (("", "Where"),)

    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        equal = ctx.producer(node.inputs[0], "Equal")
        sizes = node.inputs[2]
        if equal is None or sizes is None or ctx.dtype(sizes) not in (ir.DataType.INT64, ir.DataType.INT32):
            return None
        guards = [c for v, c in operands(equal) if v is sizes]
        negative = None if not guards else ctx.constant(guards[0])
        if negative is None or negative.size == 0 or not (negative < 0).all():
            return None
        if not ctx.same_shape(node.outputs[0], sizes):
            return Refusal("the sizes would be broadcast", sizes)
        if not _only_sizes(sizes, ctx):
            return Refusal("the target is not made of tensor sizes only", sizes)
        return Match(node, (node,), values={"sizes": sizes})

    def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
        return Replacement((), (match.values["sizes"],))


def _only_sizes(value: ir.Value, ctx: GraphContext) -> bool:
    """Whether every element of an integer tensor is a size, or a sum, product or selection of sizes."""
    pending: list[ir.Value | None] = [value]
    for _ in range(MAX_NODES):
        if not pending:
            return True
        current = pending.pop()
        numbers = ctx.constant(current)
        node = ctx.producer(current)
        if numbers is not None:
            if (numbers < 0).any():
                return False
        elif node is None or node.domain != "":
            return False
        elif node.op_type in _FIRST_INPUT:
            pending.append(node.inputs[0])
        elif node.op_type in _ALL_INPUTS:
            pending.extend(node.inputs)
        elif node.op_type not in ("Shape", "Size"):
            return False
    return False
