"""Slices that take everything and Pads that add nothing."""

from __future__ import annotations

import onnx_ir as ir

from cuvil_onnx.passes.simplify._base import SimplifyRule, drop
from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.rule import Match, Refusal

_END = 2**31 - 1
"""Ends from here on mean "to the end" whatever the size (exporters write INT32_MAX or INT64_MAX)."""


class SliceAll(SimplifyRule):
    """Exact. Slice with start 0, step 1 and an end at or behind the last element, and Pad with zeros only, give x."""

    name = "slice_all"
    roots = (("", "Slice"), ("", "Pad"))

    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        takes_all = _pads_nothing(node, ctx) if node.op_type == "Pad" else _slices_all(node, ctx)
        return drop(node, node.inputs[0]) if takes_all else None


def _pads_nothing(node: ir.Node, ctx: GraphContext) -> bool:
    pads = ctx.attr(node, "pads")
    if pads is None:
        pads = ctx.ints(node.inputs[1]) if len(node.inputs) > 1 else None
    return pads is not None and not any(pads)


def _slices_all(node: ir.Node, ctx: GraphContext) -> bool:
    starts, ends = _part(node, 1, "starts", ctx), _part(node, 2, "ends", ctx)
    if starts is None or ends is None:
        return False
    axes = _part(node, 3, "axes", ctx, list(range(len(starts))))
    steps = _part(node, 4, "steps", ctx, [1] * len(starts))
    shape = ctx.shape(node.inputs[0])
    if axes is None or steps is None or not len(starts) == len(ends) == len(axes) == len(steps):
        return False
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        size = None if shape is None or not -len(shape) <= axis < len(shape) else shape[axis]
        if start != 0 or step != 1 or not (end >= _END or (isinstance(size, int) and end >= size)):
            return False
    return True


def _part(
    node: ir.Node, index: int, name: str, ctx: GraphContext, default: list[int] | None = None
) -> list[int] | None:
    """One of Slice's lists, an attribute before opset 10; ``default`` when absent, None when not constant."""
    attr = ctx.attr(node, name)
    if attr is not None:
        return [int(i) for i in attr]
    value = node.inputs[index] if index < len(node.inputs) else None
    return default if value is None else ctx.ints(value)
