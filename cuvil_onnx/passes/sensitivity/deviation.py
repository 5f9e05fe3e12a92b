"""How far the outputs of a 16-bit execution are from those in float32, as one figure and as a sum of squares.

Only outputs that change smoothly count: an index that flips (ArgMax, TopK, NonMaxSuppression) is no rounding error, and
neither is what was looked up with it.

A classifier's Softmax hides errors of its logits where it is sure of itself. When it is on all inputs, as may be with
generated ones, the logits are looked at: an error d of the difference between the two largest moves both probabilities
by d/4 when the two are equal, which is d/2 of the larger one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from cuvil_onnx.passes.sensitivity.sites import Sites
from cuvil_onnx.rewrite import walk
from cuvil_onnx.rewrite.graph import GraphContext

Array = npt.NDArray[Any]

PEAK = 2.5
"""An output of few numbers may be close by luck. Roundings add up to about a normal distribution, of which 99 % lie
within this many root mean squares: the figure is never less than that."""

WORST = 1e4
"""What an infinity or NaN in the place of a number counts as, relative to the largest value."""

SMALLEST_SCALE = 0.25
"""An output of one number may be near 0 in some run, where any error is large beside it: differences are relative to no
less than this share of the largest magnitude in all runs."""

SURE = 2.2
"""Between the two largest logits, from which on the smaller probability is less than a tenth of both."""

DECIDING = frozenset({"ArgMax", "ArgMin", "NonMaxSuppression", "NonZero", "TopK", "Unique", "Multinomial"})
SIZES = frozenset({"Shape", "Size"})  # are the same for any numbers
VIEWS = frozenset({"Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})


@dataclasses.dataclass(frozen=True)
class Point:
    """Where a deviation is measured.

    Attributes:
        output: which output of the model; None for logits.
        logits: the value that a Softmax turns into an output, and that node.
        axis: of the Softmax.
    """

    output: int | None = None
    logits: tuple[ir.Value, ir.Node] | None = None
    axis: int = -1


def find_points(ctx: GraphContext, sites: Sites) -> list[Point]:
    """The outputs that can be compared, and the logits behind those that are probabilities."""
    decided = _decided(ctx, sites)
    points = []
    for index, output in enumerate(ctx.model.graph.outputs):
        dtype = ctx.dtype(output)
        if output in decided or (dtype is not None and dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE)):
            continue
        points.append(Point(output=index))
        node = output.producer()
        while node is not None and not node.domain and node.op_type in VIEWS and node.inputs[0] is not None:
            node = node.inputs[0].producer()
        if node is not None and not node.domain and node.op_type == "Softmax" and node.inputs[0] is not None:
            old = ctx.opset() < 13  # everything from the axis on is one row then
            axis = int(ctx.attr(node, "axis", 1 if old else -1))
            if not old or axis in (-1, (ctx.rank(node.inputs[0]) or 0) - 1):
                points.append(Point(logits=(node.inputs[0], node), axis=axis))
    return points


def _decided(ctx: GraphContext, sites: Sites) -> set[ir.Value]:
    """Values that depend on an index or a branch chosen by rounded numbers."""
    touched: set[ir.Value] = {site.value for site in sites.all if site.value is not None}
    decided: set[ir.Value] = set()
    for node in ctx.model.graph:
        bodies = list(walk.subgraphs(node))
        inner = [n for g in bodies for n in walk.all_nodes(g)]
        read = [v for n in (node, *inner) for v in n.inputs if v is not None]
        if node.op_type in SIZES or not (node in sites.unit_of or any(v in touched for v in read)):
            continue
        if any(v in touched for v in node.inputs):
            touched.update(v for g in bodies for v in g.inputs)
        for n in inner:
            nested = [v for g in walk.subgraphs(n) for v in g.inputs]
            if nested or n.op_type == "If" or (n.op_type not in SIZES and any(v in touched for v in n.inputs)):
                touched.update((*n.outputs, *nested))
        touched.update(node.outputs)
        chooses = _chooses(node, ctx) or any(_chooses(n, ctx) for n in inner)
        chooses = chooses or any(_branches(n, touched) for n in (node, *inner))
        if chooses or any(v in decided for v in read):
            first = 1 if node.op_type == "TopK" and not any(v in decided for v in read) else 0  # its values are smooth
            decided.update(node.outputs[first:])
    return decided


def _chooses(node: ir.Node, ctx: GraphContext) -> bool:
    """Whether the result is an index or made of what an index points to."""
    return node.op_type in DECIDING or (node.op_type == "Cast" and _is_index(node.outputs[0], ctx))


def _branches(node: ir.Node, touched: set[ir.Value]) -> bool:
    """Whether rounded numbers may decide which branch is taken, or when a loop ends."""
    if node.op_type == "If":
        return node.inputs[0] in touched
    if node.op_type != "Loop":
        return False
    ends = [g.outputs[0] for g in walk.subgraphs(node)]
    return any(v in touched for v in (*node.inputs[:2], *ends))


def _is_index(value: ir.Value, ctx: GraphContext) -> bool:
    return ctx.dtype(value) in (ir.DataType.INT32, ir.DataType.INT64)


@dataclasses.dataclass
class Deviation:
    """Differences collected over several runs.

    Attributes:
        relative: of the outputs, to the largest magnitude of each in each run.
        undecided: of probabilities where the two likeliest are equal, to the larger one.
        square: the mean of the squares, summed over all points: what independent roundings add up in.
        numbers: how many were compared, at the point with the fewest.
    """

    relative: float = 0.0
    undecided: float = 0.0
    square: float = 0.0
    numbers: int = 0


def deviation(points: Sequence[Point], runs: Sequence[tuple[Sequence[Array], Sequence[Array]]]) -> Deviation:
    """Compares runs, each the reference and the result, one array a point."""
    total = Deviation()
    for index, point in enumerate(points):
        squares, count, largest = 0.0, 0, 0.0
        scale = SMALLEST_SCALE * max((_magnitude(reference[index]) for reference, _ in runs), default=0.0)
        for reference, result in runs:
            want, got = np.asarray(reference[index]), np.asarray(result[index])
            if want.dtype.kind != "f" or want.shape != got.shape or not want.size:
                continue  # of a type nobody could tell, or a size that depends on what was computed
            if point.logits is not None and not _is_sure(want, point.axis):
                squares, count, largest = 0.0, 0, 0.0
                break  # the output itself shows what errors do
            error = _relative(want, got, scale) if point.logits is None else _undecided(want, got, point.axis)
            squares += float(np.square(error, dtype=np.float64).sum())
            count += error.size
            largest = max(largest, float(error.max(initial=0.0)))
        if not count:
            continue
        total.square += squares / count
        total.numbers = min(total.numbers or count, count)
        if point.logits is None:
            total.relative = max(total.relative, largest, min(PEAK * math.sqrt(squares / count), WORST))
        else:
            total.undecided = max(total.undecided, largest)
    return total


def _magnitude(array: Any) -> float:
    """The largest finite one; 0 for what is no float tensor."""
    if not isinstance(array, np.ndarray) or array.dtype.kind != "f":
        return 0.0
    return float(np.abs(array[np.isfinite(array)]).max(initial=0.0))


def _relative(want: Array, got: Array, smallest: float) -> Array:
    """Differences relative to the largest finite magnitude."""
    finite = np.isfinite(want)
    scale = max(_magnitude(want), smallest)
    if not scale:
        return np.zeros(0)
    error = np.where(np.isfinite(got), 0.0, WORST)
    both = finite & np.isfinite(got)
    error[both] = np.minimum(np.abs(got[both].astype(np.float64) - want[both]) / scale, WORST)
    error[~finite] = 0.0
    return error


def _is_sure(logits: Array, axis: int) -> bool:
    """Whether one class is by far the likeliest in every row."""
    if logits.shape[axis] < 2 or not np.isfinite(logits).all():
        return False
    top = np.sort(logits, axis=axis)
    return bool((np.take(top, -1, axis) - np.take(top, -2, axis)).min() > SURE)


def _undecided(want: Array, got: Array, axis: int) -> Array:
    """What the difference between the two largest logits is off by, halved."""
    order = np.argsort(want, axis=axis, kind="stable")
    moved = got.astype(np.float64) - want
    first, second = (np.take_along_axis(moved, np.take(order, [i], axis=axis), axis) for i in (-1, -2))
    error = np.abs(first - second) / 2
    return np.asarray(np.where(np.isfinite(error), np.minimum(error, WORST), WORST))
