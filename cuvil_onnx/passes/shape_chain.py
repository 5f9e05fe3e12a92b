"""Partial evaluation of shape arithmetic (exact).

Exporters compute target shapes with chains of Shape, Gather, Concat and integer arithmetic. Values on such chains are
short integer vectors whose elements are often known (a static dimension) or are a named dimension. Fully known
results become constants; a Reshape or Expand whose target is known up to named dimensions of its own input gets a
constant target, and the chain falls away.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from cuvil_onnx.rewrite.apply import replace_node
from cuvil_onnx.rewrite.graph import Dim, GraphContext
from cuvil_onnx.rewrite.trace import Trace

MAX_ELEMENTS = 64
"""Longer integer vectors are data, not shapes."""

Known = tuple[tuple[Dim, ...], int]
"""Elements (None: unknown) of an integer tensor, and its rank (0 or 1)."""


def simplify_shape_chains(ctx: GraphContext, trace: Trace) -> int:
    """Replaces known results by constants; returns how many."""
    known: dict[ir.Value, Known] = {}
    changed = 0
    for graph in ctx.graphs:
        for node in list(graph):
            if node.domain or len(node.outputs) != 1:
                continue
            handler = _HANDLERS.get(node.op_type)
            result = None if handler is None else handler(node, _Reader(known, ctx))
            if result is not None and len(result[0]) <= MAX_ELEMENTS:
                known[node.outputs[0]] = result
                changed += _replace_by_constant(node, result, ctx)
            elif node.op_type == "Reshape":
                changed += _fix_reshape(node, known, ctx)
            elif node.op_type == "Expand":
                changed += _fix_expand(node, known, ctx)
    return changed


class _Reader:
    """Reads integer vectors: constants, and what the chain computed so far."""

    def __init__(self, known: dict[ir.Value, Known], ctx: GraphContext) -> None:
        self._known = known
        self.ctx = ctx

    def get(self, node: ir.Node, index: int) -> Known | None:
        value = node.inputs[index] if index < len(node.inputs) else None
        if value is None:
            return None
        if value in self._known:
            return self._known[value]
        if self.ctx.dtype(value) not in (ir.DataType.INT64, ir.DataType.INT32):
            return None
        array = self.ctx.constant(value, MAX_ELEMENTS)
        if array is None or array.ndim > 1:
            return None
        return tuple(int(i) for i in array.reshape(-1)), array.ndim

    def ints(self, node: ir.Node, index: int, attr: str = "") -> list[int] | None:
        """A list given as attribute or as constant input."""
        written = self.ctx.attr(node, attr) if attr else None
        if written is not None:
            return [int(i) for i in written]
        return self.ctx.ints(node.inputs[index]) if index < len(node.inputs) else None


def _shape(node: ir.Node, read: _Reader) -> Known | None:
    shape = read.ctx.shape(node.inputs[0])
    if shape is None:
        return None
    start, end = read.ctx.attr(node, "start", 0), read.ctx.attr(node, "end")
    return shape[slice(start, end)], 1


def _size(node: ir.Node, read: _Reader) -> Known | None:
    shape = read.ctx.static_shape(node.inputs[0])
    return None if shape is None else ((math.prod(shape),), 0)


def _gather(node: ir.Node, read: _Reader) -> Known | None:
    data, index = read.get(node, 0), read.get(node, 1)
    if data is None or index is None or data[1] != 1:
        return None
    items: list[Dim] = []
    for i in index[0]:
        if not isinstance(i, int) or not -len(data[0]) <= i < len(data[0]):
            return None
        items.append(data[0][i])
    return tuple(items), index[1]


def _concat(node: ir.Node, read: _Reader) -> Known | None:
    items: list[Dim] = []
    for i in range(len(node.inputs)):
        part = read.get(node, i)
        if part is None or part[1] != 1:
            return None
        items.extend(part[0])
    return tuple(items), 1


def _slice(node: ir.Node, read: _Reader) -> Known | None:
    data = read.get(node, 0)
    starts, ends = read.ints(node, 1, "starts"), read.ints(node, 2, "ends")
    if data is None or data[1] != 1 or starts is None or ends is None or len(starts) != 1:
        return None
    steps = read.ints(node, 4) if len(node.inputs) > 4 and node.inputs[4] is not None else [1]
    if steps is None or steps == [0]:
        return None
    length, start, end, step = len(data[0]), starts[0], ends[0], steps[0]
    if step < 0:
        return None  # negative ends have another meaning in Python than in ONNX
    return data[0][slice(max(start, -length), max(end, -length), step)], 1


def _unsqueeze(node: ir.Node, read: _Reader) -> Known | None:
    data, axes = read.get(node, 0), read.ints(node, 1, "axes")
    return (data[0], 1) if data is not None and data[1] == 0 and axes in ([0], [-1]) else None


def _squeeze(node: ir.Node, read: _Reader) -> Known | None:
    data = read.get(node, 0)
    return (data[0], 0) if data is not None and data[1] == 1 and len(data[0]) == 1 else None


def _same(node: ir.Node, read: _Reader) -> Known | None:
    return read.get(node, 0)


def _cast(node: ir.Node, read: _Reader) -> Known | None:
    integer = read.ctx.attr(node, "to") in (int(ir.DataType.INT64), int(ir.DataType.INT32))
    data = read.get(node, 0) if integer else None
    small = data is not None and all(not isinstance(d, int) or abs(d) < 2**31 for d in data[0])
    return data if small else None


def _arithmetic(compute: Callable[[int, int], int | None]) -> Callable[[ir.Node, _Reader], Known | None]:
    def handler(node: ir.Node, read: _Reader) -> Known | None:
        a, b = read.get(node, 0), read.get(node, 1)
        if a is None or b is None:
            return None
        length = len(b[0]) if len(a[0]) == 1 else len(a[0])
        if len(a[0]) not in (1, length) or len(b[0]) not in (1, length):
            return None
        left = a[0] * length if len(a[0]) == 1 else a[0]
        right = b[0] * length if len(b[0]) == 1 else b[0]
        return tuple(_compute(compute, x, y) for x, y in zip(left, right, strict=True)), max(a[1], b[1])

    return handler


def _compute(compute: Callable[[int, int], int | None], x: Dim, y: Dim) -> Dim:
    if isinstance(x, int) and isinstance(y, int):
        result = compute(x, y)
        return result if result is not None and abs(result) < 2**31 else None
    if isinstance(x, str) and y == 1 and compute in (_mul, _div):
        return x
    return y if isinstance(y, str) and x == 1 and compute is _mul else None


def _mul(x: int, y: int) -> int | None:
    return x * y


def _div(x: int, y: int) -> int | None:
    return x // y if x >= 0 and y > 0 else None


_HANDLERS: dict[str, Callable[[ir.Node, _Reader], Known | None]] = {
    "Shape": _shape,
    "Size": _size,
    "Gather": _gather,
    "Concat": _concat,
    "Slice": _slice,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Identity": _same,
    "Cast": _cast,
    "Mul": _arithmetic(_mul),
    "Div": _arithmetic(_div),
    "Add": _arithmetic(lambda x, y: x + y),
    "Sub": _arithmetic(lambda x, y: x - y),
}


def _replace_by_constant(node: ir.Node, result: Known, ctx: GraphContext) -> int:
    items, rank = result
    numbers = [i for i in items if isinstance(i, int)]
    dtype = ctx.dtype(node.outputs[0])
    if node.op_type == "Identity" or len(numbers) != len(items) or dtype is None:
        return 0
    if all(v is None or ctx.is_constant(v) for v in node.inputs):
        return 0  # constant folding does these
    array = np.array(numbers, dtype=dtype.numpy()).reshape(() if rank == 0 else (-1,))
    constant = ctx.initializer(array, node.outputs[0].name or "shape")
    return int(replace_node(node, (), (constant,), ctx))


def _fix_reshape(node: ir.Node, known: dict[ir.Value, Known], ctx: GraphContext) -> int:
    """Gives a Reshape a constant target when each unknown size is the input's size at the same place.

    0 copies such a size. One other unknown size may become -1, but only when all the rest are known and not 0: with a
    copied size that is 0 at run time, -1 is an error.
    """
    target = node.inputs[1] if len(node.inputs) > 1 else None
    shape = ctx.shape(node.inputs[0])
    if target is None or target not in known or shape is None or ctx.is_constant(target):
        return 0
    if ctx.attr(node, "allowzero", 0):
        return 0
    fixed = _constant_target(known[target][0], shape)
    if fixed is None:
        return 0
    name = f"{node.name or 'reshape'}_shape"
    node.replace_input_with(1, ctx.initializer(np.array(fixed, np.int64), name))
    return 1


def _constant_target(wanted: Sequence[Dim], shape: Sequence[Dim]) -> list[int] | None:
    fixed: list[int] = []
    open_places = 0
    for i, dim in enumerate(wanted):
        if isinstance(dim, int):
            if dim == 0:
                return None  # a literal 0 copies as well, but says so by accident: leave it
            fixed.append(dim)
        elif dim is not None and i < len(shape) and shape[i] == dim:
            fixed.append(0)
        else:
            fixed.append(-1)
            open_places += 1
    if open_places == 0:
        return fixed if fixed.count(-1) <= 1 else None
    if open_places == 1 and fixed.count(-1) == 1 and 0 not in fixed:
        return fixed
    return None


def _fix_expand(node: ir.Node, known: dict[ir.Value, Known], ctx: GraphContext) -> int:
    """Gives an Expand a constant target when each unknown size is the input's own: there a 1 keeps it."""
    target = node.inputs[1] if len(node.inputs) > 1 else None
    shape = ctx.shape(node.inputs[0])
    if target is None or target not in known or shape is None or ctx.is_constant(target):
        return 0
    wanted = known[target][0]
    own = (*[1] * (len(wanted) - len(shape)), *shape)[-len(wanted) :] if wanted else ()
    fixed = [w if isinstance(w, int) else 1 for w in wanted]
    if any(not isinstance(w, int) and (w is None or w != d) for w, d in zip(wanted, own, strict=True)):
        return 0
    node.replace_input_with(1, ctx.initializer(np.array(fixed, np.int64), f"{node.name or 'expand'}_shape"))
    return 1
