"""What several rules need: proofs about shapes, cuvil nodes, chains of constants."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

import custom_ops
from cuvil_onnx.rewrite.graph import Dim, GraphContext, names_a_size

HALF = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
TENSOR_CORE_TYPES = (ir.DataType.FLOAT, *HALF)
FLOATS = (*TENSOR_CORE_TYPES, ir.DataType.DOUBLE)


def dims(value: ir.Value | None, ctx: GraphContext) -> tuple[Dim, ...] | None:
    """The shape, with None where nothing is known; symbols such as "?" or "-1" in files tell nothing."""
    shape = ctx.shape(value)
    if shape is None:
        return None
    return tuple(d if isinstance(d, int) or names_a_size(d) else None for d in shape)


def equal_in_a_sum(size: Dim, full: Dim) -> bool:
    """Whether a dimension of a summand is that of the sum, `full`, in every run that ends without an error.

    x[:n] of c > 1 elements has min(n, c) of them, which broadcasts to n only where it is n.
    """
    if size is None or size == full:
        return size is not None
    cut = re.fullmatch(r"min\((.+),(\d+)\)", size) if isinstance(size, str) else None
    return cut is not None and cut[1] == full and int(cut[2]) > 1


def same_shape(a: ir.Value, b: ir.Value, ctx: GraphContext) -> bool:
    """Whether both shapes are known to be equal in every run."""
    left, right = dims(a, ctx), dims(b, ctx)
    return a is b or (left is not None and left == right and None not in left)


def fits(small: ir.Value, full: Sequence[Dim], ctx: GraphContext) -> bool:
    """Whether `small` is known to broadcast to the shape `full` without enlarging it."""
    return fit(dims(small, ctx), full)


def fit(shape: Sequence[Dim] | None, full: Sequence[Dim]) -> bool:
    """`fits` for a shape; None, an unknown one, does not."""
    if shape is None or len(shape) > len(full):
        return False
    tail = full[len(full) - len(shape) :]
    return all(d == 1 or (d is not None and d == f) for d, f in zip(shape, tail, strict=True))


def vector(value: ir.Value, size: Dim, ctx: GraphContext, *, axis: int = -1, rank: int | None = None) -> bool:
    """Whether `value` varies along one axis only: its shape is [size], or has 1 everywhere but at `axis`.

    Args:
        size: the length required along the axis.
        axis: counted from the end.
        rank: of the tensor it is combined with; `value` must not have more dimensions.
    """
    shape = dims(value, ctx)
    if shape is None or size is None or len(shape) < -axis or (rank is not None and len(shape) > rank):
        return False
    return shape[axis] == size and all(d == 1 for i, d in enumerate(shape, -len(shape)) if i != axis)


def flat(value: ir.Value, ctx: GraphContext, hint: str) -> ir.Value | None:
    """`value` as a tensor of rank 1: itself, or a reshaped copy of the constant; None for another computed value."""
    if ctx.rank(value) == 1:
        return value
    array = ctx.constant(value, max_elements=None)
    return None if array is None else ctx.initializer(np.ascontiguousarray(array).reshape(-1), hint)


def unused(value: ir.Value, readers: Sequence[ir.Node], ctx: GraphContext) -> list[ir.Node] | None:
    """The readers of `value` beside `readers` when nothing uses what they compute; None when something does.

    Rewriting leaves such nodes behind, which took sizes from tensors of the old form; a rule that removes `value` must
    remove them too.
    """
    found: dict[ir.Node, None] = {}
    pending = [value]
    while pending:
        current = pending.pop()
        if current.is_graph_output():
            return None
        for user in ctx.users(current):
            if user in readers or user in found:
                continue
            if len(found) >= 64 or user.graph is not value.graph:
                return None
            found[user] = None
            pending.extend(user.outputs)
    return list(found)


def make(
    op: str,
    inputs: Sequence[ir.Value | None],
    attrs: Mapping[str, Any],
    ctx: GraphContext,
    dtype: ir.DataType,
    like: Sequence[ir.Value],
) -> tuple[ir.Node, ir.Function]:
    """A cuvil node with fresh names whose outputs have the types and shapes of `like`."""
    node, function = custom_ops.make(op, inputs, len(like), attrs, opset=ctx.opset(), dtype=dtype, cache=ctx.memo)
    name_node(node, ctx)
    for output, model in zip(node.outputs, like, strict=True):
        output.type = model.type
        if model.shape is not None:
            output.shape = model.shape.copy()
    return node, function


def name_node(node: ir.Node, ctx: GraphContext) -> None:
    """Gives a node and its outputs names that nothing else has."""
    node.name = ctx.fresh_name(node.op_type)
    for index, output in enumerate(node.outputs):
        output.name = ctx.fresh_name(f"{node.name}_out{index or ''}")


def number_beside(constant: ir.Value | None, other: ir.Value | None, ctx: GraphContext) -> float | None:
    """The number in a constant of one element whose dimensions, all 1, do not raise the rank of `other` beside it."""
    number, rank, other_rank = ctx.scalar(constant), ctx.rank(constant), ctx.rank(other)
    keeps = rank == 0 or (rank is not None and other_rank is not None and rank <= other_rank)
    return None if number is None or not keeps else float(number)


def scalar_factor(node: ir.Node, ctx: GraphContext) -> tuple[ir.Value, float] | None:
    """(x, c) when the node computes x * c for a constant scalar c: Mul either way round, Div by a constant."""
    if node.domain != "" or node.op_type not in ("Mul", "Div") or len(node.inputs) != 2:
        return None
    a, b = node.inputs
    if a is None or b is None:
        return None
    for x, c in ((a, b), (b, a)) if node.op_type == "Mul" else ((a, b),):
        number = number_beside(c, x, ctx)
        if number is None or ctx.is_constant(x):
            continue
        if node.op_type == "Mul":
            return x, number
        return (x, 1.0 / number) if number else None
    return None


def scalar_term(node: ir.Node, ctx: GraphContext) -> tuple[ir.Value, float] | None:
    """(x, c) when the node computes x + c for a constant scalar c."""
    if node.domain != "" or node.op_type not in ("Add", "Sub") or len(node.inputs) != 2:
        return None
    a, b = node.inputs
    if a is None or b is None:
        return None
    for x, c in ((a, b), (b, a)) if node.op_type == "Add" else ((a, b),):
        number = number_beside(c, x, ctx)
        if number is not None and not ctx.is_constant(x):
            return x, number if node.op_type == "Add" else -number
    return None


def near(a: float, b: float, tolerance: float) -> bool:
    """Equal up to a relative difference."""
    return abs(a - b) <= tolerance * max(abs(a), abs(b))


def digits(value: ir.Value | None, ctx: GraphContext) -> float:
    """The relative error of constants as they are written beside a value.

    float16 has half a unit of 2^-11, twice where two constants are multiplied; in float32 exporters write five digits
    or more (1.4142, 0.79788), and what differs by more is another constant.
    """
    return {ir.DataType.FLOAT: 1e-5, ir.DataType.DOUBLE: 1e-7}.get(ctx.dtype(value) or ir.DataType.FLOAT, 1e-3)


def last_axis_only(node: ir.Node, ctx: GraphContext) -> str | None:
    """None when a reduction is over the last axis and keeps it; else the reason why it does not fit."""
    if ctx.attr(node, "keepdims", 1) != 1:
        return "the reduction drops its axis (keepdims = 0)"
    given = ctx.attr(node, "axes")
    axes = list(given) if given is not None else ctx.ints(node.inputs[1] if len(node.inputs) > 1 else None)
    rank = ctx.rank(node.inputs[0])
    if axes is None or len(axes) != 1:
        return f"the reduction is over axes {axes}, only the last axis is supported"
    if axes[0] == -1 or (rank is not None and axes[0] == rank - 1):
        return None
    return f"the reduction is over axis {axes[0]}, only the last axis is supported"
