"""Recognises 0, 1, 2, ... along one axis of a tensor, as exporters write batch and position numbers."""

from __future__ import annotations

from typing import NamedTuple

import onnx_ir as ir

from cuvil_onnx.passes.simplify.unsqueeze import axes_of
from cuvil_onnx.rewrite.graph import GraphContext


class Arange(NamedTuple):
    """A tensor of `rank` dimensions, all but `axis` of size 1, whose elements are 0 .. limit - 1."""

    limit: ir.Value
    axis: int
    rank: int
    source: ir.Value


def arange(value: ir.Value | None, ctx: GraphContext) -> Arange | None:
    """What `value` counts; None when it does something else."""
    rank = ctx.rank(value)
    if value is None or rank is None:
        return None
    whole, places = value, list(range(rank))
    while (node := ctx.producer(value, "Unsqueeze")) is not None:
        axes = axes_of(node, ctx)
        if axes is None:
            return None
        places = [place for index, place in enumerate(places) if index not in axes]
        value = node.inputs[0]
    node = ctx.producer(value, "Range")
    if node is None or ctx.scalar(node.inputs[0]) != 0 or ctx.scalar(node.inputs[2]) != 1 or len(places) != 1:
        return None
    limit = node.inputs[1]
    return None if limit is None else Arange(limit, places[0], rank, whole)
