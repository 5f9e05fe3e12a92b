"""Recognises 0, 1, 2, ... along one axis of a tensor, as exporters write batch and position numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from cuvil_onnx.passes.simplify.unsqueeze import axes_of
from cuvil_onnx.rewrite.graph import Dim, GraphContext
from cuvil_onnx.rules._common import dims


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


def size_of(count: Arange, ctx: GraphContext) -> Dim:
    """How many numbers there are; None when no name is known for that."""
    return (dims(count.source, ctx) or (None,) * count.rank)[count.axis]


def selected(x: ir.Value, counts: Sequence[Arange], rank: int, ctx: GraphContext) -> tuple[list[ir.Node], ir.Value]:
    """(nodes, value): of x [M, N] the first rows and columns, as many as two counts in order say, along their axes."""
    nodes = _first(x, counts, ctx)
    value = nodes[-1].outputs[0] if nodes else x
    axes = [axis for axis in range(rank) if axis not in [c.axis for c in counts]]
    if axes:
        nodes.append(ctx.node("Unsqueeze", [value, ctx.initializer(np.array(axes, np.int64), "axes")]))
        value = nodes[-1].outputs[0]
        shape: list[Dim] = [1] * rank
        for count in counts:
            shape[count.axis] = size_of(count, ctx)
        value.type, value.shape = x.type, ir.Shape(shape)
    return nodes, value


def _first(x: ir.Value, counts: Sequence[Arange], ctx: GraphContext) -> list[ir.Node]:
    """The nodes that cut off what is not counted of x; none where x is known to have just that many."""
    shape = dims(x, ctx) or (None, None)
    sizes = [size_of(c, ctx) for c in counts]
    cut = [axis for axis in range(2) if shape[axis] is None or shape[axis] != sizes[axis]]
    if not cut:
        return []
    one = ctx.initializer(np.array([1], np.int64), "one")
    nodes = [ctx.node("Reshape", [counts[axis].limit, one]) for axis in cut]
    ends = [n.outputs[0] for n in nodes]
    for end in ends:
        end.type, end.shape = ir.TensorType(ir.DataType.INT64), ir.Shape([1])
    if len(ends) > 1:
        nodes.append(ctx.node("Concat", ends, {"axis": 0}))
        ends = list(nodes[-1].outputs)
        ends[0].type, ends[0].shape = ir.TensorType(ir.DataType.INT64), ir.Shape([2])
    starts = ctx.initializer(np.zeros(len(cut), np.int64), "starts")
    axes = ctx.initializer(np.array(cut, np.int64), "axes")
    nodes.append(ctx.node("Slice", [x, starts, ends[0], axes]))
    value = nodes[-1].outputs[0]
    value.type = x.type
    value.shape = ir.Shape(sizes)
    return nodes
