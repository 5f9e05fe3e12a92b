"""Reads a tensor back to the one whose last axis was cut: Split, or Slice with constant bounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import onnx_ir as ir

from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rules._common import dims


class Part(NamedTuple):
    """Elements [start, start + size * step) of the last axis of `x`, every `step`-th, cut out by `node`."""

    x: ir.Value
    start: int
    size: int
    step: int
    node: ir.Node


def part_of(value: ir.Value | None, ctx: GraphContext) -> Part | None:
    """What part of the last axis of another tensor `value` is; None when it is none, or sizes are not known."""
    node = ctx.producer(value)
    if node is None or value is None or node.domain != "" or node.op_type not in ("Split", "Slice"):
        return None
    x, shape = node.inputs[0], dims(value, ctx)
    whole = dims(x, ctx)
    if x is None or not shape or not whole or len(shape) != len(whole):
        return None
    size, full = shape[-1], whole[-1]
    if not isinstance(size, int) or not isinstance(full, int):
        return None
    if node.op_type == "Split":
        if ctx.attr(node, "axis", 0) not in (-1, len(shape) - 1):
            return None
        before = [(dims(v, ctx) or (None,))[-1] for v in node.outputs[: node.outputs.index(value)]]
        starts = [b for b in before if isinstance(b, int)]
        return Part(x, sum(starts), size, 1, node) if len(starts) == len(before) else None
    given = [ctx.ints(v) for v in node.inputs[1:5]]
    if len(given) < 3 or any(v is None or len(v) != 1 for v in given):
        return None
    start, _, axis, *rest = (v[0] for v in given if v is not None)
    step = rest[0] if rest else 1
    if axis not in (-1, len(shape) - 1) or step < 1:
        return None
    # A start outside the axis is moved to its ends; the number of elements is known from the shape.
    return Part(x, min(max(start + full if start < 0 else start, 0), full), size, step, node)


def contiguous(values: Sequence[ir.Value | None], ctx: GraphContext) -> tuple[ir.Value, list[ir.Node]] | None:
    """(x, nodes) when `nodes` cut the last axis of x into just these parts, in this order."""
    start = 0
    found: list[Part] = []
    for value in values:
        part = part_of(value, ctx)
        if part is None or part.step != 1 or part.start != start or (found and part.x is not found[0].x):
            return None
        start += part.size
        found.append(part)
    whole = dims(found[0].x, ctx) if found else None
    if whole is None or whole[-1] != start:
        return None
    return found[0].x, list(dict.fromkeys(p.node for p in found))
