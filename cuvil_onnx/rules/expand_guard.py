"""Drops the guard that exporters put around the target of an Expand.

Before: Where(Equal(sizes, -1), ones, sizes), where -1 would have meant "keep" and `sizes` is made of tensor sizes.
After:  sizes.
Before: the same of Concat(sizes, -1, ...), where some numbers are -1 indeed.
After:  Concat(sizes, one, ...).
Exactness: exact; a size is never negative.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
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
        if _only_sizes(sizes, ctx):
            return Match(node, (node,), values={"sizes": sizes})
        pieces = _pieces(sizes, negative, ctx.constant(node.inputs[1]), ctx)
        if pieces is None:
            return Refusal("the target is not made of tensor sizes only", sizes)
        return Match(node, (node,), attrs={"pieces": pieces})

    def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
        if "sizes" in match.values:
            return Replacement((), (match.values["sizes"],))
        pieces = [p if isinstance(p, ir.Value) else ctx.initializer(p, "sizes") for p in match.attrs["pieces"]]
        concat = ctx.node("Concat", pieces, {"axis": 0}, like=match.root.outputs[0])
        return Replacement((concat,), concat.outputs)


def _pieces(
    sizes: ir.Value, guard: npt.NDArray[Any], instead: npt.NDArray[Any] | None, ctx: GraphContext
) -> list[ir.Value | npt.NDArray[Any]] | None:
    """The parts of a Concat of sizes and numbers, the numbers as the guard leaves them."""
    concat, shape = ctx.producer(sizes, "Concat"), ctx.static_shape(sizes)
    if concat is None or instead is None or shape is None or len(shape) != 1:
        return None
    if any(array.shape not in ((), (1,), shape) for array in (guard, instead)):
        return None
    guard, instead = np.broadcast_to(guard, shape), np.broadcast_to(instead, shape)
    found: list[ir.Value | npt.NDArray[Any]] = []
    start = 0
    for piece in concat.inputs:
        length = ctx.static_shape(piece)
        if piece is None or length is None:
            return None
        part = slice(start, start + length[0])
        numbers = ctx.constant(piece)
        if numbers is not None:
            left = np.where(numbers == guard[part], instead[part], numbers)
            if (left < 0).any():
                return None
            found.append(left)
        elif _only_sizes(piece, ctx):
            found.append(piece)
        else:
            return None
        start = part.stop
    return found


def _only_sizes(value: ir.Value, ctx: GraphContext) -> bool:
    """Whether every element of an integer tensor is a size, or a sum, product, quotient or selection of sizes."""
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
        elif node.op_type == "Div":  # of one that is not negative by a positive number
            divisor = ctx.constant(node.inputs[1])
            if divisor is None or not (divisor > 0).all():
                return False
            pending.append(node.inputs[0])
        elif node.op_type not in ("Shape", "Size"):
            return False
    return False
