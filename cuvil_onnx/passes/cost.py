"""What a node costs, from the shapes of its values: floating-point operations, and bytes read and written.

Operations: two for each multiply-add of products, convolutions and attention, one for each element of everything else
that computes, none for what only moves data. Bytes: all inputs and outputs of the node, as when it runs alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import onnx_ir as ir

Sizes = Callable[[ir.Value | None], tuple[int, ...] | None]
"""Tells the sizes of a value; None when one is unknown."""

_VIEWS = frozenset(("Constant", "Dropout", "Flatten", "Identity", "Reshape", "Shape", "Size", "Squeeze", "Unsqueeze"))
_MOVES = frozenset(
    (
        "Cast",
        "CastLike",
        "Compress",
        "Concat",
        "ConstantOfShape",
        "DepthToSpace",
        "Expand",
        "EyeLike",
        "Gather",
        "GatherElements",
        "GatherND",
        "NonZero",
        "OneHot",
        "Pad",
        "Range",
        "ScatterElements",
        "ScatterND",
        "Slice",
        "SpaceToDepth",
        "Split",
        "Tile",
        "Transpose",
        "Trilu",
        "Where",
    )
)
_PICKS = frozenset(("Gather", "GatherElements", "GatherND", "Slice"))  # read only what they return
_WEIGHT = {"Conv": 1, "FusedConv": 1, "ConvInteger": 1, "QLinearConv": 3}
_PRODUCTS = frozenset(("MatMul", "Gemm", "FusedMatMul", "MatMulInteger", "QLinearMatMul"))
_UNKNOWN = frozenset(("Einsum", "If", "Loop", "Scan", "SequenceMap"))


def static_shape(value: ir.Value | None) -> tuple[int, ...] | None:
    """All sizes; None when one is unknown."""
    if value is None:
        return None
    if value.const_value is not None:
        return tuple(value.const_value.shape.numpy())
    if value.shape is None or not all(isinstance(d, int) for d in value.shape):
        return None
    return tuple(int(d) for d in value.shape if isinstance(d, int))


def flops(node: ir.Node, sizes: Sizes = static_shape) -> int | None:
    """Floating-point (or integer) operations of one run; None when shapes are unknown or the operator is no use."""
    kind = node.op_type
    if kind in _VIEWS or kind in _MOVES:
        return 0
    shapes = [sizes(v) for v in node.inputs]
    result = sizes(node.outputs[0]) if node.outputs else None
    if kind in _UNKNOWN or result is None or not shapes or shapes[0] is None:
        return None if node.inputs else 0
    elements, first = math.prod(result), shapes[0]
    if kind in _PRODUCTS and first:
        transposed = kind == "Gemm" and "transA" in node.attributes and node.attributes["transA"].as_int()
        return 2 * elements * first[0 if transposed else -1]
    if kind in _WEIGHT or kind == "ConvTranspose":
        weight = shapes[_WEIGHT.get(kind, 1)] if len(shapes) > _WEIGHT.get(kind, 1) else None
        positions = math.prod(first) if kind == "ConvTranspose" else elements
        return None if weight is None else 2 * positions * math.prod(weight[1:])
    if kind in ("LSTM", "GRU", "RNN"):
        weights = shapes[1:3]
        return None if None in weights else 2 * first[0] * first[1] * sum(math.prod(w) for w in weights if w)
    if kind == "Attention":
        if node.domain == "com.microsoft":
            return None  # projects its input itself
        keys = shapes[1] if len(shapes) > 1 and shapes[1] is not None else first
        return 4 * elements * keys[-2] if len(keys) > 1 else None
    if kind == "Pointwise" and node.domain == "cuvil":
        program = node.attributes["program"].as_strings()
        return elements * sum(not line.startswith(("load.", "const.")) for line in program)
    return max(elements, math.prod(first))


def bytes_moved(node: ir.Node, sizes: Sizes = static_shape) -> int | None:
    """Bytes that the node reads and writes; None when a shape or element type is unknown."""
    if node.op_type in _VIEWS:
        return 0
    if node.op_type in _UNKNOWN - {"Einsum"}:
        return None
    written = [_size(v, sizes) for v in node.outputs if v.name]
    read = written if node.op_type in _PICKS else [_size(v, sizes) for v in node.inputs if v is not None]
    total = 0
    for size in (*written, *read):
        if size is None:
            return None
        total += size
    return total


def _size(value: ir.Value, sizes: Sizes) -> int | None:
    shape, dtype = sizes(value), value.dtype
    if value.const_value is not None:
        dtype = value.const_value.dtype
    if shape is None or dtype in (None, ir.DataType.UNDEFINED, ir.DataType.STRING):
        return None
    return math.ceil(math.prod(shape) * dtype.itemsize)
