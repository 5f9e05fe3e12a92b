"""Recognises heads of keys and values that are repeated for several heads of queries (grouped, multi-query attention).

torch's repeat_kv writes Unsqueeze, Expand, Reshape; others Reshape, Tile, Reshape; one head alone is also expanded as
it is. Each copy is next to its original, so head h of the queries meets head h // repeats of the keys.
"""

from __future__ import annotations

from typing import NamedTuple

import onnx_ir as ir

from cuvil_onnx.rewrite.graph import Dim, GraphContext
from cuvil_onnx.rules._common import dims

_COPIES = ("Expand", "Tile")


class Repetition(NamedTuple):
    """`x` with each element of an axis `repeats` times in a row."""

    x: ir.Value
    repeats: int
    nodes: list[ir.Node]


def repetition(node: ir.Node, axis: int, ctx: GraphContext) -> Repetition | None:
    """What `node` (of rank 4) repeats along `axis`; None when it does something else, or sizes are not known."""
    if node.domain != "":
        return None
    result = dims(node.outputs[0], ctx)
    if result is None or len(result) != 4 or None in result:
        return None
    if node.op_type in _COPIES:
        x = node.inputs[0]
        repeats = _times(dims(x, ctx), result, axis)
        # With more than one head the copies are not next to each other.
        alone = dims(x, ctx) == (*result[:axis], 1, *result[axis + 1 :])
        return None if x is None or repeats is None or not alone else Repetition(x, repeats, [node])
    copy = ctx.producer(node.inputs[0]) if node.op_type in ("Reshape", "Flatten") else None
    if copy is None or copy.domain != "" or copy.op_type not in _COPIES:
        return None
    widen = ctx.producer(copy.inputs[0])
    if widen is None or widen.domain != "" or widen.op_type not in ("Unsqueeze", "Reshape"):
        return None
    x, narrow, wide = widen.inputs[0], dims(copy.inputs[0], ctx), dims(copy.outputs[0], ctx)
    if x is None or narrow is None or wide is None or len(wide) != 5:
        return None
    repeats = _times(narrow, wide, axis + 1)
    shape = dims(x, ctx)
    if repeats is None or shape is None or shape != (*narrow[: axis + 1], *narrow[axis + 2 :]):
        return None
    heads = shape[axis]
    if not isinstance(heads, int) or result != (*shape[:axis], heads * repeats, *shape[axis + 1 :]):
        return None
    return Repetition(x, repeats, [node, copy, widen])


def _times(narrow: tuple[Dim, ...] | None, wide: tuple[Dim, ...], axis: int) -> int | None:
    """How often an axis of size 1 is repeated, all others staying as they are."""
    times = wide[axis]
    if narrow is None or len(narrow) != len(wide) or None in narrow or not isinstance(times, int):
        return None
    return times if narrow == (*wide[:axis], 1, *wide[axis + 1 :]) else None
