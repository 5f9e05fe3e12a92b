"""Repeats what happens to split heads for the tensor that was never transposed.

Exporters transpose q, k and v to [B, N, S, H] before they compute on heads. cuvil::Attention reads [B, S, N * H]: with
the same work done on [B, S, N, H] neither that transpose nor one back is needed. The old nodes fall away as dead code.
Exact: every element is computed from the same elements.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from cuvil_onnx.rewrite.graph import Dim, GraphContext
from cuvil_onnx.rules._common import dims

SWAP = (0, 2, 1, 3)
MAX_NODES = 32

_ELEMENTWISE = ("Add", "Mul", "Sub", "Neg")


def can_swap(value: ir.Value | None, readers: Iterable[ir.Node], ctx: GraphContext) -> bool:
    """Whether :func:`swap` can build `value` [B, N, S, H] as [B, S, N, H], and only `readers` need the old one.

    Nodes that take sizes from it do not count: they mostly serve the old form.
    """
    pending: list[ir.Value | None] = [value]
    seen: set[ir.Node] = set()
    while pending:
        node = ctx.producer(pending.pop())
        if node is None or node.domain != "" or len(seen) >= MAX_NODES:
            return False
        if node in seen or (node.op_type == "Transpose" and tuple(ctx.attr(node, "perm", ())) == SWAP):
            continue
        inputs = _inputs(node, ctx)
        if not inputs:
            return False
        seen.add(node)
        pending.extend(inputs)
    known = seen.union(readers)
    for node in seen:
        output = node.outputs[0]
        if output.is_graph_output() or any(u not in known and u.op_type != "Shape" for u in ctx.users(output)):
            return False
    return True


def swap(value: ir.Value, ctx: GraphContext) -> tuple[ir.Value, list[ir.Node]]:
    """`value` with its middle axes swapped, and the new nodes for it. Only after :func:`can_swap`."""
    nodes: list[ir.Node] = []
    made: dict[ir.Value, ir.Value] = {}
    pending = [value]
    while pending:
        current = pending[-1]
        node = ctx.producer(current)
        assert node is not None
        if node.op_type == "Transpose":
            source = node.inputs[0]
            assert source is not None
            made[current] = source
        missing = [] if current in made else [v for v in _inputs(node, ctx) if v not in made]
        if missing:
            pending.extend(missing)
            continue
        pending.pop()
        if current not in made:
            made[current] = _build(node, made, nodes, ctx)
    return made[value], nodes


def _inputs(node: ir.Node, ctx: GraphContext) -> list[ir.Value]:
    """Those inputs of `node` that are to be swapped as well; empty when the node is not understood."""
    given = [v for v in node.inputs if v is not None]
    shape = dims(node.outputs[0], ctx)
    if shape is None or len(shape) != 4 or None in shape:
        return []
    if node.op_type == "Concat" and ctx.attr(node, "axis") in (3, -1):
        return given
    if node.op_type == "Slice" and len(node.inputs) > 3 and ctx.ints(node.inputs[3]) in ([3], [-1]):
        return given[:1]
    if node.op_type not in _ELEMENTWISE:
        return []
    if any(not _stays(v, ctx) and not _is_side(v, shape, ctx) and dims(v, ctx) != shape for v in given):
        return []
    return [v for v in given if dims(v, ctx) == shape and not _is_side(v, shape, ctx)]


def _stays(value: ir.Value, ctx: GraphContext) -> bool:
    """Whether an operand varies along the last axis at most, which stays where it is."""
    rank = ctx.rank(value)
    return rank is not None and rank <= 1


def _is_side(value: ir.Value, shape: tuple[Dim, ...], ctx: GraphContext) -> bool:
    """Whether an operand is the same for all heads (a rotation's cosines): [1 or B, 1, 1 or S, 1 or H]."""
    own = dims(value, ctx)
    if own is None or len(own) != 4 or own[1] != 1:
        return False
    return shape[1] != 1 and all(o in (1, d) for o, d in zip(own, shape, strict=True))


def _build(node: ir.Node, made: dict[ir.Value, ir.Value], nodes: list[ir.Node], ctx: GraphContext) -> ir.Value:
    """The swapped result of `node` from its swapped inputs."""
    output = node.outputs[0]
    shape = dims(output, ctx)
    assert shape is not None
    inputs: list[ir.Value | None] = []
    for v in node.inputs:
        if v is not None and v not in made and node.op_type in _ELEMENTWISE and _is_side(v, shape, ctx):
            nodes.append(ctx.node("Transpose", [v], {"perm": SWAP}))
            made[v] = nodes[-1].outputs[0]
            _set_swapped(made[v], v, ctx)
        inputs.append(v if v is None else made.get(v, v))
    nodes.append(ctx.node(node.op_type, inputs, {name: a.value for name, a in node.attributes.items()}))
    value = nodes[-1].outputs[0]
    _set_swapped(value, output, ctx)
    return value


def _set_swapped(value: ir.Value, like: ir.Value, ctx: GraphContext) -> None:
    shape = dims(like, ctx)
    assert shape is not None
    value.type, value.shape = like.type, ir.Shape([shape[i] for i in SWAP])
