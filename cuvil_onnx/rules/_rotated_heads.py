"""Builds cuvil::RotaryEmbedding, which reads and writes [B, S, N * H], for heads in either order of axes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from cuvil_onnx.rewrite.graph import Dim, GraphContext
from cuvil_onnx.rewrite.rule import Refusal, Replacement
from cuvil_onnx.rules._common import FLOATS, dims, make
from cuvil_onnx.rules._heads import SPLIT
from cuvil_onnx.rules._parts import part_of
from cuvil_onnx.rules._rotary import Turn


@dataclass
class Heads:
    """Heads to rotate.

    Attributes:
        value: [B, N, S, H], [B, S, N, H] or merged.
        source: the same as [B, S, N, H] or merged as [B, S, N * H].
        axis: where N is in `value`; 0 when `value` is merged itself.
        nodes: those between `source` and `value`.
    """

    value: ir.Value
    source: ir.Value
    axis: int
    heads: int
    size: int
    nodes: list[ir.Node] = field(default_factory=list)


def whole_heads(turn: Turn, ctx: GraphContext) -> tuple[ir.Value, list[ir.Node], list[ir.Node]]:
    """(heads, last nodes, other nodes), where only their first elements are rotated; else what is rotated."""
    last = turn.output.producer()
    assert last is not None
    join = ctx.single_user(turn.output, "Concat") if ctx.rank(turn.x) == 4 else None
    first = part_of(turn.x, ctx)
    nothing = None if join is None or len(join.inputs) != 2 else join.inputs[1]
    if join is not None and join.inputs[0] is turn.output and (dims(nothing, ctx) or (None,))[-1] == 0:
        return turn.x, [last, join], []  # all is rotated, and the rest that is joined is empty
    if join is None or first is None or first.start != 0 or first.step != 1 or len(join.inputs) != 2:
        return turn.x, [last], []
    rest, full = part_of(join.inputs[1], ctx), dims(first.x, ctx)
    if join.inputs[0] is not turn.output or rest is None or full is None or ctx.attr(join, "axis") not in (-1, 3):
        return turn.x, [last], []
    whole = rest.x is first.x and rest.step == 1 and rest.start == first.size and rest.start + rest.size == full[-1]
    return (first.x, [last, join], [first.node, rest.node]) if whole else (turn.x, [last], [])


def heads_of(value: ir.Value, factor: ir.Value, ctx: GraphContext) -> Heads | Refusal:
    """Finds out which axis of `value` holds the heads: the one along which the cosines `factor` do not vary."""
    shape, cos = dims(value, ctx), dims(factor, ctx)
    if ctx.dtype(value) not in FLOATS:
        return Refusal("the heads are not of a floating-point type", value)
    if shape is None or len(shape) != 4 or cos is None or len(cos) > 4 or None in shape:
        return Refusal("the shapes of the heads or of the cosines are not known", value)
    padded: tuple[Dim, ...] = (*(1,) * (4 - len(cos)), *cos)
    transpose = ctx.producer(value, "Transpose")
    swapped = transpose is not None and tuple(ctx.attr(transpose, "perm", ())) == SPLIT
    for axis in (1, 2) if swapped else (2, 1):
        rows, heads, size = shape[3 - axis], shape[axis], shape[3]
        fits = padded[axis] == 1 and padded[0] in (1, shape[0]) and padded[3 - axis] in (1, rows)
        if not fits or not isinstance(heads, int) or not isinstance(size, int):
            continue
        if axis == 2:
            source, nodes = merged(value, ctx)
            return Heads(value, source, axis, heads, size, nodes)
        if swapped and transpose is not None and transpose.inputs[0] is not None:
            source, nodes = merged(transpose.inputs[0], ctx)
            return Heads(value, source, axis, heads, size, [transpose, *nodes])
        return Refusal("the heads are not transposed from [B, S, N, H]", value)
    return Refusal("the cosines are not known to be the same for all heads", factor)


def merged(value: ir.Value, ctx: GraphContext) -> tuple[ir.Value, list[ir.Node]]:
    """[B, S, N * H] that was split into `value` [B, S, N, H], and the node for that; else `value`."""
    reshape, shape = ctx.producer(value, "Reshape"), dims(value, ctx)
    source = None if reshape is None else reshape.inputs[0]
    if reshape is None or source is None or shape is None:
        return value, []
    heads, size = shape[2:]
    if not isinstance(heads, int) or not isinstance(size, int) or dims(source, ctx) != (*shape[:2], heads * size):
        return value, []
    return source, [reshape]


def factor_rows(value: ir.Value, axis: int, nodes: list[ir.Node], ctx: GraphContext) -> ir.Value:
    """Cosines or sines that broadcast to the heads, as [1 or B, 1 or S, R]; appends the nodes for that."""
    shape = dims(value, ctx)
    assert shape is not None
    if len(shape) == 3 and axis == 1:
        return value
    if len(shape) < 4:
        target = ctx.initializer(np.array([1, -1, shape[-1]], np.int64), "rows")
        nodes.append(ctx.node("Reshape", [value, target]))
        rows = shape[-2 if axis == 1 else -3] if len(shape) > (1 if axis == 1 else 2) else 1
        result = nodes[-1].outputs[0]
        result.type, result.shape = value.type, ir.Shape([1, rows, shape[-1]])
        return result
    flat = (*shape[:axis], *shape[axis + 1 :])
    widen = ctx.producer(value, "Unsqueeze")
    if widen is not None and widen.inputs[0] is not None and dims(widen.inputs[0], ctx) == flat and None not in flat:
        # An axis of size 1 among others of size 1 may have been added at another place: the elements are the same.
        return widen.inputs[0]
    for user in ctx.users(value):  # made for another tensor that is rotated alike
        plain = user.op_type == "Squeeze" and user.domain == "" and user.graph is value.graph
        if plain and dims(user.outputs[0], ctx) == flat:
            return user.outputs[0]
    if ctx.opset() >= 13:
        node = ctx.node("Squeeze", [value, ctx.initializer(np.array([axis], np.int64), "axes")])
    else:
        node = ctx.node("Squeeze", [value], {"axes": [axis]})
    nodes.append(node)
    node.outputs[0].type, node.outputs[0].shape = value.type, ir.Shape(flat)
    return node.outputs[0]


def rotated(
    heads: Heads,
    cos: ir.Value,
    sin: ir.Value,
    attrs: dict[str, int],
    before: list[ir.Node],
    like: ir.Value,
    ctx: GraphContext,
) -> Replacement:
    """The op, and the reshapes and the transpose that make a value like `like`.

    Args:
        cos, sin: [1 or B, 1 or S, R], computed by `before` or outside.
        attrs: rotary_dim, interleaved, per_pair.
    """
    nodes = list(before)
    source, dtype = heads.source, ctx.dtype(heads.value)
    shape = dims(heads.source, ctx)
    assert shape is not None and dtype is not None
    width = heads.heads * heads.size
    if len(shape) == 4:
        target = ctx.initializer(np.array([0, 0, width], np.int64), "merged")
        nodes.append(ctx.node("Reshape", [source, target]))
        source = nodes[-1].outputs[0]
        source.type, source.shape = heads.value.type, ir.Shape([*shape[:2], width])
    given = {"num_heads": heads.heads, **attrs}
    node, function = make("RotaryEmbedding", [source, cos, sin], given, ctx, dtype, [source])
    if heads.axis == 0:
        return Replacement([*nodes, node], node.outputs, (function,))
    target = ctx.initializer(np.array([0, 0, heads.heads, heads.size], np.int64), "heads")
    nodes += [node, ctx.node("Reshape", [node.outputs[0], target])]
    split = nodes[-1].outputs[0]
    split.type, split.shape = heads.value.type, ir.Shape([*shape[:2], heads.heads, heads.size])
    if heads.axis == 1:
        nodes.append(ctx.node("Transpose", [split], {"perm": SPLIT}, like=like))
    return Replacement(nodes, nodes[-1].outputs, (function,))
