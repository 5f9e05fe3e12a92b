"""How each operator of shape arithmetic makes integer vectors from integer vectors, in numbers and symbols."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from cuvil_onnx.passes._dims import Dim, Names
from cuvil_onnx.passes._sizes import MAX_VECTOR, Sizes, Vector


def elements(node: ir.Node, sizes: Sizes) -> Vector | None:
    """The elements of the integer (or bool) tensor, if of rank 0 or 1, that a node of shape arithmetic computes."""
    kind, ctx = node.op_type, sizes.ctx
    first = node.inputs[0] if node.inputs else None
    if kind == "Shape":
        dims = sizes.of(first)
        return None if dims is None else tuple(window_of(node, sizes, dims))
    if kind == "ConstantOfShape":
        count, value = sizes.vector(first), ctx.attr(node, "value")
        if count is None or len(count) > 1 or not all(isinstance(c, int) and c <= MAX_VECTOR for c in count):
            return None
        fill = 0 if value is None else value.numpy().reshape(-1)[0]
        total = int(count[0]) if count and count[0] is not None and not isinstance(count[0], str) else 1
        return (int(fill),) * total if int(fill) == fill and value is not None else None
    a = sizes.vector(first)
    if kind == "Concat":
        pieces = [sizes.vector(v) for v in node.inputs]
        return None if any(p is None for p in pieces) else tuple(e for p in pieces if p is not None for e in p)
    if a is None:
        return None
    if kind in ("Cast", "Identity", "Unsqueeze", "Squeeze", "Reshape", "Flatten"):
        if kind == "Cast" and ctx.attr(node, "to") not in (ir.DataType.INT64, ir.DataType.INT32):
            return None
        return a
    if kind == "Gather":
        indices = ctx.ints(node.inputs[1])
        ok = indices is not None and all(-len(a) <= i < len(a) for i in indices)
        return tuple(a[i] for i in indices) if indices is not None and ok else None
    if kind == "Slice":
        given = ctx.attr(node, "ends")
        ends = list(given) if given is not None else ctx.ints(node.inputs[2] if len(node.inputs) > 2 else None)
        starts, steps = sizes.ints(node, "starts", 1), sizes.ints_or(node, "steps", 4, [1])
        axes = sizes.ints_or(node, "axes", 3, [0])
        if not starts or not ends or not steps or not axes or len(starts) != 1:
            return None
        return a[starts[0] : ends[0] : steps[0]]
    if kind in ("Add", "Sub", "Mul", "Div", "Equal"):
        return _arithmetic(kind, a, sizes.vector(node.inputs[1]), sizes.names)
    if kind == "Where":
        x, y = sizes.vector(node.inputs[1]), sizes.vector(node.inputs[2])
        if x is None or y is None or not len(a) == len(x) == len(y):
            return None
        return tuple(None if c is None else (p if c else q) for c, p, q in zip(a, x, y, strict=True))
    if kind == "ReduceProd" and all(e is not None for e in a) and not ctx.attr(node, "keepdims", 1):
        return (sizes.names.multiply([e for e in a if e is not None]),)
    return None


def _arithmetic(kind: str, a: Vector, b: Vector | None, names: Names) -> Vector | None:
    if b is None or (len(a) != len(b) and 1 not in (len(a), len(b))):
        return None
    count = len(b) if len(a) == 1 else len(a)  # none, where one of them is empty
    left, right = (v * count if len(v) == 1 else v for v in (a, b))
    return tuple(
        None if x is None or y is None else _combine(kind, x, y, names) for x, y in zip(left, right, strict=True)
    )


def _combine(kind: str, x: Dim, y: Dim, names: Names) -> Dim | bool | None:
    if kind == "Add":
        return names.add(x, y)
    if kind == "Sub":
        return names.subtract(x, y)
    if kind == "Mul":
        return names.multiply([x, y])
    if kind == "Div":
        return names.divide(x, y) if isinstance(y, int) and y > 0 else None
    if isinstance(x, int) == isinstance(y, int):
        return x == y if isinstance(x, int) or x == y else None
    number = x if isinstance(x, int) else y
    return False if isinstance(number, int) and number < 0 else None


def window_of(node: ir.Node, sizes: Sizes, items: Sequence[Dim]) -> Sequence[Dim]:
    """The part of a shape that Shape's `start` and `end` choose."""
    return items[slice(sizes.ctx.attr(node, "start", 0), sizes.ctx.attr(node, "end", len(items)))]
