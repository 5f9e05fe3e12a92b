"""Recognises torch's mask[batch, position] written with flat positions.

Before: Reshape(Gather(x [M, N] as a row, a * N + b), like the index), where a counts the rows and b all N columns along
        two axes of the index (the legacy exporter).
After:  x, or its first rows, with axes of size 1 between them. A Cast of x is done behind the selection.
Exactness: exact.
"""

from __future__ import annotations

import onnx_ir as ir

from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.pattern import operands
from cuvil_onnx.rewrite.rule import Exactness, Match, Phase, Refusal, Replacement, Rule
from cuvil_onnx.rules._arange import Arange, arange, selected, size_of
from cuvil_onnx.rules._common import dims

LOWEST_OPSET = 13  # axes as inputs


class FlatGather(Rule):
    """See the module's text."""

    name = "flat_gather"
    phase = Phase.STRUCTURAL
    exactness = Exactness.EXACT
    roots = (("", "Reshape"),)

    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        inner = node
        while (before := ctx.producer(inner.inputs[0], "Reshape")) is not None:
            inner = before
        gather = ctx.producer(inner.inputs[0], "Gather")
        flat = None if gather is None else _flat(ctx.producer(gather.inputs[0]), ctx)
        if gather is None or flat is None or ctx.attr(gather, "axis", 0) != 0 or ctx.opset() < LOWEST_OPSET:
            return None
        index, shape = gather.inputs[1], dims(gather.inputs[1], ctx)
        counts = _counts(index, flat, ctx)
        if counts is None or shape is None:
            return None
        if dims(node.outputs[0], ctx) != shape or None in shape:
            return Refusal("the result is not known to have the shape of the index", node)
        if any(size != 1 for axis, size in enumerate(shape) if axis not in [c.axis for c in counts]):
            return Refusal("the index repeats what it counts", gather)
        cast = ctx.producer(flat, "Cast")
        values = {"x": flat if cast is None else cast.inputs[0]}
        attrs = {"counts": counts, "rank": len(shape), "to": None if cast is None else ctx.attr(cast, "to")}
        return Match(node, (node,), values=values, attrs=attrs)

    def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
        x = match.values["x"]
        assert x is not None
        nodes, value = selected(x, match.attrs["counts"], match.attrs["rank"], ctx)
        if match.attrs["to"] is not None:
            nodes.append(ctx.node("Cast", [value], {"to": match.attrs["to"]}, like=match.root.outputs[0]))
            value = nodes[-1].outputs[0]
        return Replacement(nodes, (value,))


def _flat(node: ir.Node | None, ctx: GraphContext) -> ir.Value | None:
    """x [M, N] when `node` makes one row or one column of it."""
    if node is None or node.domain or node.op_type not in ("Flatten", "Reshape") or ctx.rank(node.inputs[0]) != 2:
        return None
    shape = dims(node.outputs[0], ctx)
    column = node.op_type == "Flatten" and ctx.attr(node, "axis", 1) == 2
    return node.inputs[0] if column or (shape is not None and len(shape) == 1) else None


def _counts(index: ir.Value | None, x: ir.Value, ctx: GraphContext) -> tuple[Arange, Arange] | None:
    """(a, b) when `index` is a * N + b, and b counts to N."""
    add = ctx.producer(index, "Add")
    if add is None:
        return None
    for product, added in operands(add):
        columns, multiply = arange(added, ctx), ctx.producer(product, "Mul")
        if columns is None or multiply is None:
            continue
        for counted, width in operands(multiply):
            rows = arange(counted, ctx)
            if rows is None or not _is_width(width, x, ctx) or rows.rank != columns.rank or rows.axis >= columns.axis:
                continue
            size, full = size_of(columns, ctx), (dims(x, ctx) or (None, None))[1]
            if size is not None and size == full and size_of(rows, ctx) is not None:
                return rows, columns
    return None


def _is_width(value: ir.Value, x: ir.Value, ctx: GraphContext) -> bool:
    """Whether `value` is the number of columns of x: a constant, or taken from the shape of x."""
    columns, number = (dims(x, ctx) or (None, None))[1], ctx.scalar(value)
    if number is not None:
        return isinstance(columns, int) and number == columns
    if ctx.rank(value) not in (0, 1) or (ctx.rank(value) == 1 and ctx.static_shape(value) != (1,)):
        return False
    node = ctx.producer(value)
    while node is not None and not node.domain and node.op_type in ("Squeeze", "Unsqueeze", "Identity"):
        node = ctx.producer(node.inputs[0])
    if node is not None and not node.domain and node.op_type == "Gather":
        place, node = ctx.scalar(node.inputs[1]), ctx.producer(node.inputs[0], "Shape")
        whole = node is not None and not ctx.attr(node, "start", 0) and ctx.attr(node, "end") is None
        return place in (1, -1) and whole and node is not None and _shape_is(node.inputs[0], x, ctx)
    if node is None or node.domain or node.op_type != "Shape":
        return False
    part = (ctx.attr(node, "start", 0), ctx.attr(node, "end"))
    return part in ((1, 2), (1, None), (-1, None)) and _shape_is(node.inputs[0], x, ctx)


def _shape_is(value: ir.Value | None, x: ir.Value, ctx: GraphContext) -> bool:
    """Whether `value` has as many columns as x, both of two dimensions."""
    shape, own = dims(value, ctx), dims(x, ctx)
    return value is x or (shape is not None and own is not None and len(shape) == 2 and shape[1] == own[1] is not None)
