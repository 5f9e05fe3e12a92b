"""Reads one operand of attention back to the tensor that was split into heads, and finds where they are merged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from cuvil_onnx.rewrite.graph import Dim, GraphContext
from cuvil_onnx.rules._common import dims, fit, scalar_factor, scalar_term
from cuvil_onnx.rules._parts import contiguous
from cuvil_onnx.rules._repeat import repetition

SPLIT = (0, 2, 1, 3)  # [B, S, N, H] <-> [B, N, S, H]
_SPLIT_TRANSPOSED = (0, 2, 3, 1)  # [B, S, N, H] -> [B, N, H, S]
_SPLIT_PACKED = (2, 0, 3, 1, 4)  # [B, S, 3, N, H] -> [3, B, N, S, H]
_PACKED_ORDERS = {False: (0, 1, 2, 3), True: (0, 1, 3, 2)}


@dataclass
class Branch:
    """Where q, k or v comes from.

    Attributes:
        source: [B, S, heads * head_size], or three times as wide when `part` is given, or of rank 4 with `perm`.
        batch: B.
        length: S.
        scale: constant factor on the way.
        nodes: those between `source` and the operand.
        part: which third of `source` it is.
        perm: what transposes `source` to [B, S, heads, head_size].
        repeats: how often each of the heads is repeated in the operand.
    """

    source: ir.Value
    batch: Dim
    length: Dim
    heads: int
    head_size: int
    scale: float
    nodes: list[ir.Node]
    part: int | None = None
    perm: tuple[int, ...] | None = None
    repeats: int = 1


def scale_of(node: ir.Node, ctx: GraphContext) -> tuple[ir.Value, float] | None:
    """(x, c) when the node computes x * c; also x + 0, which some exporters write after each scale."""
    scaled = scalar_factor(node, ctx)
    if scaled is not None:
        return scaled
    term = scalar_term(node, ctx)
    return (term[0], 1.0) if term is not None and term[1] == 0.0 else None


def branch(value: ir.Value | None, transposed: bool, ctx: GraphContext) -> Branch | ir.Node | None:
    """Reads value = [B, N, S, H] (transposed: [B, N, H, S]) back; the node where that fails, None at an input."""
    way = _walk(value, ctx)
    node = ctx.producer(way.value)
    if node is None or node.domain != "":
        return node
    if node.op_type == "Reshape":
        correct = tuple(way.order) == (_SPLIT_TRANSPOSED if transposed else SPLIT)
        return _separate(node, way, ctx) if correct else node
    correct = tuple(way.order) == _PACKED_ORDERS[transposed]
    return _packed(node, way, ctx) if correct and way.repeats == 1 else node


def unmerged(value: ir.Value | None, transposed: bool, ctx: GraphContext) -> Branch | None:
    """The same for heads that were computed on: `source` is that tensor of rank 4."""
    way = _walk(value, ctx)
    source, shape = way.value, dims(way.value, ctx)
    if source is None or shape is None or len(shape) != 4:
        return None
    perm = tuple(way.order[i] for i in ((0, 3, 1, 2) if transposed else SPLIT))
    batch, length, heads, size = (shape[i] for i in perm)
    if batch is None or length is None or not isinstance(heads, int) or not isinstance(size, int):
        return None
    return Branch(source, batch, length, heads, size, way.scale, way.nodes, perm=perm, repeats=way.repeats)


def joined_source(sides: Sequence[Branch], ctx: GraphContext) -> tuple[ir.Value, list[ir.Node]] | None:
    """(x, nodes) when `nodes` cut x [B, S, W] into just the sources, in order."""
    if any(s.perm is not None or s.part is not None or ctx.rank(s.source) != 3 for s in sides):
        return None
    return contiguous([s.source for s in sides], ctx)


def merge(context: ir.Node, split: tuple[Dim, ...], ctx: GraphContext) -> list[ir.Node]:
    """The transpose and the reshape that merge heads of sizes `split` again, or the transpose alone, or nothing."""
    transpose = ctx.single_user(context.outputs[0], "Transpose")
    if transpose is None or tuple(ctx.attr(transpose, "perm", ())) != SPLIT:
        return []
    if dims(transpose.outputs[0], ctx) != split:
        return []
    reshape = ctx.single_user(transpose.outputs[0], "Reshape")
    heads, size = split[2:]
    assert isinstance(heads, int) and isinstance(size, int)
    if reshape is None or dims(reshape.outputs[0], ctx) != (*split[:2], heads * size):
        return [transpose]
    return [transpose, reshape]


def set_merged_shape(value: ir.Value, like: ir.Value, heads: tuple[int, int] | None, ctx: GraphContext) -> None:
    """Gives `value` the shape [B, S, N * H] when it stands for `like` [B, S, N, H] of `heads`, (N, H)."""
    shape = dims(like, ctx)
    if heads is not None and shape is not None:
        value.shape = ir.Shape([*shape[:2], heads[0] * heads[1]])


def split_again(
    node: ir.Node, like: ir.Value, heads: tuple[int, int] | None, ctx: GraphContext
) -> tuple[list[ir.Node], Sequence[ir.Value]]:
    """(nodes, values) that end in a value like `like`: [B, S, N * H] as `node` gives it, or split into `heads`, (N, H).

    Where merged heads are wanted in yet another shape, the transpose to [B, S, N, H] is all there is to replace.
    """
    if heads is None:
        return [node], node.outputs
    target = ctx.initializer(np.array([0, 0, *heads], np.int64), "heads")
    reshape = ctx.node("Reshape", [node.outputs[0], target], like=like)
    return [node, reshape], reshape.outputs


def fits_scores(mask: ir.Value, rows: Sequence[Dim], ctx: GraphContext) -> bool:
    """Whether a mask is known to broadcast to scores [B, N, S, T] of `rows`, (B, N, S), without enlarging them.

    Along the keys that is certain whatever is known of the sizes: the scores meet T values next.
    """
    shape = dims(mask, ctx)
    return bool(shape) and fit((*(shape or ())[:-1], 1), (*rows, 1))


def removable(core: Sequence[ir.Node], heads: Sequence[ir.Node], ctx: GraphContext) -> tuple[ir.Node, ...]:
    """The core and those nodes of `heads` that nothing else reads: exporters take sizes from the split tensors."""
    chosen = dict.fromkeys([*core, *heads])
    pending = [n for n in dict.fromkeys(heads) if n not in core]
    while True:
        needed = [
            n for n in pending if any(v.is_graph_output() or set(ctx.users(v)) - chosen.keys() for v in n.outputs)
        ]
        if not needed:
            return tuple(chosen)
        for node in needed:
            del chosen[node]
            pending.remove(node)


@dataclass
class _Way:
    """How an operand is made of `value`: scaled, its heads repeated, its axes in that order."""

    value: ir.Value | None
    scale: float = 1.0
    order: list[int] = field(default_factory=lambda: list(range(4)))
    repeats: int = 1
    nodes: list[ir.Node] = field(default_factory=list)


def _walk(value: ir.Value | None, ctx: GraphContext) -> _Way:
    """Back over scales, transposes and repeated heads."""
    way = _Way(value)
    while (node := ctx.producer(way.value)) is not None and node.domain == "":
        scaled = scale_of(node, ctx)
        repeated = repetition(node, way.order[1], ctx) if way.repeats == 1 else None
        if scaled is not None:
            way.scale *= scaled[1]
            way.value = scaled[0]
        elif repeated is not None:
            way.value, way.repeats = repeated.x, repeated.repeats
            way.nodes += repeated.nodes[:-1]
            node = repeated.nodes[-1]
        elif node.op_type == "Transpose" and len(ctx.attr(node, "perm", ())) == 4:
            perm = ctx.attr(node, "perm")
            way.order = [perm[i] for i in way.order]
            way.value = node.inputs[0]
        else:
            break
        way.nodes.append(node)
    return way


def _separate(reshape: ir.Node, way: _Way, ctx: GraphContext) -> Branch | ir.Node:
    """[B, S, N * H] reshaped to [B, S, N, H]; a scale may also stand before that."""
    source, scale = reshape.inputs[0], way.scale
    assert source is not None
    nodes = [*way.nodes, reshape]
    before = ctx.producer(source)
    scaled = None if before is None else scale_of(before, ctx)
    if before is not None and scaled is not None and ctx.single_user(source) is reshape:
        source, scale = scaled[0], scale * scaled[1]
        nodes.append(before)
    split, whole = dims(reshape.outputs[0], ctx), dims(source, ctx)
    if split is None or whole is None or len(split) != 4 or len(whole) != 3:
        return reshape
    heads, size = split[2:]
    if whole[:2] != split[:2] or None in whole[:2] or not isinstance(heads, int) or not isinstance(size, int):
        return reshape
    if whole[2] != heads * size:
        return reshape
    return Branch(source, *split[:2], heads, size, scale, nodes, repeats=way.repeats)


def _packed(node: ir.Node, way: _Way, ctx: GraphContext) -> Branch | ir.Node:
    """One of three parts of [3, B, N, S, H], which was [B, S, 3, N, H] and [B, S, 3 * N * H] before."""
    chosen = _choose(node, ctx)
    transpose = None if chosen is None else ctx.producer(chosen[0], "Transpose")
    if chosen is None or transpose is None or tuple(ctx.attr(transpose, "perm", ())) != _SPLIT_PACKED:
        return node
    reshape = ctx.producer(transpose.inputs[0], "Reshape")
    source = None if reshape is None else reshape.inputs[0]
    if reshape is None or source is None:
        return transpose
    split, whole = dims(reshape.outputs[0], ctx), dims(source, ctx)
    if split is None or whole is None or len(split) != 5 or len(whole) != 3 or split[2] != 3:
        return reshape
    heads, size = split[3:]
    if whole[:2] != split[:2] or None in whole[:2] or not isinstance(heads, int) or not isinstance(size, int):
        return reshape
    if whole[2] != 3 * heads * size:
        return reshape
    return Branch(source, *split[:2], heads, size, way.scale, [*way.nodes, *chosen[2], transpose, reshape], chosen[1])


def _choose(node: ir.Node, ctx: GraphContext) -> tuple[ir.Value, int, list[ir.Node]] | None:
    """(x, i, nodes) when x[i] is computed: Gather, or Squeeze of Slice or of Split, on axis 0."""
    x = node.inputs[0]
    if node.op_type == "Gather" and x is not None and ctx.attr(node, "axis", 0) == 0:
        index = ctx.scalar(node.inputs[1])
        return (x, int(index) % 3, [node]) if index is not None and ctx.rank(node.inputs[1]) == 0 else None
    axes = ctx.attr(node, "axes") or ctx.ints(node.inputs[1] if len(node.inputs) > 1 else None)
    part = ctx.producer(x) if node.op_type == "Squeeze" and axes is not None and list(axes) == [0] else None
    if part is None or part.domain != "" or x is None or part.inputs[0] is None:
        return None
    if part.op_type == "Split" and ctx.attr(part, "axis", 0) == 0 and len(part.outputs) == 3:
        return part.inputs[0], part.outputs.index(x), [node, part]
    if part.op_type != "Slice" or len(part.inputs) < 4:
        return None
    start, end, axis = (ctx.ints(v) for v in part.inputs[1:4])
    step = ctx.ints(part.inputs[4]) if len(part.inputs) > 4 else [1]
    if start is None or end is None or axis != [0] or step != [1] or len(start) != 1 or end != [start[0] + 1]:
        return None
    return (part.inputs[0], start[0], [node, part]) if start[0] >= 0 else None
