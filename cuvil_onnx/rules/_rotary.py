"""Reads written-out rotary position embeddings back: pairs of elements (a, b) become (a cos - b sin, b cos + a sin)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.pattern import operands
from cuvil_onnx.rules._common import dims
from cuvil_onnx.rules._parts import part_of


@dataclass
class Turn:
    """`output` is `x` [.., R] rotated.

    Attributes:
        interleaved: the elements of a pair are neighbours; else R / 2 apart.
        per_pair: `cos` and `sin` have one element a pair.
        nodes: those that compute it.
    """

    x: ir.Value
    cos: ir.Value
    sin: ir.Value
    interleaved: bool
    per_pair: bool
    output: ir.Value
    nodes: list[ir.Node]


@dataclass
class _Lane:
    """The first or second elements of the pairs of `x`."""

    x: ir.Value
    second: bool
    interleaved: bool
    nodes: list[ir.Node]


def turn_of(node: ir.Node, ctx: GraphContext) -> Turn | None:
    """What `node` rotates: the sum of x * cos and turned x * sin, or the two halves joined."""
    if node.op_type == "Add":
        return _sum(node, ctx)
    return _joined(node, ctx)


def _sum(node: ir.Node, ctx: GraphContext) -> Turn | None:
    """x * cos + turned(x) * sin, where turned(x) holds (-b, a)."""
    for straight, turned in operands(node):
        for r, sin in _factors(turned, ctx):
            lanes = _pair_lanes(r, ctx)
            if lanes is None:
                continue
            first, second, nodes = lanes
            negated = ctx.producer(first, "Neg")
            b = _lane(None if negated is None else negated.inputs[0], ctx)
            a = _lane(second, ctx)
            if negated is None or a is None or b is None or not _are_pair(a, b):
                continue
            for x, cos in _factors(straight, ctx):
                if x is a.x:
                    products = [p for v in (straight, turned) if (p := ctx.producer(v)) is not None]
                    nodes = [node, *products, *nodes, negated, *a.nodes, *b.nodes]
                    if dims(r, ctx) == dims(x, ctx):
                        return Turn(x, cos, sin, a.interleaved, False, node.outputs[0], list(dict.fromkeys(nodes)))
    return None


def _joined(node: ir.Node, ctx: GraphContext) -> Turn | None:
    """(a * cos - b * sin, b * cos + a * sin), one after the other or element by element."""
    lanes = _pair_lanes(node.outputs[0], ctx)
    minus = None if lanes is None else ctx.producer(lanes[0], "Sub")
    plus = None if lanes is None else ctx.producer(lanes[1], "Add")
    if lanes is None or minus is None or plus is None:
        return None
    for a_value, cos in _factors(minus.inputs[0], ctx):
        a = _lane(a_value, ctx)
        if a is None:
            continue
        for b_value, sin in _factors(minus.inputs[1], ctx):
            b = _lane(b_value, ctx)
            if b is None or not _are_pair(a, b):
                continue
            for left, right in operands(plus):
                crossed = (b_value, cos) in _factors(left, ctx) and (a_value, sin) in _factors(right, ctx)
                # Both ways of joining lanes and of taking them apart must agree.
                if crossed and dims(node.outputs[0], ctx) == dims(a.x, ctx) and a.interleaved == (len(lanes[2]) > 1):
                    products = [ctx.producer(v) for v in (*minus.inputs, *plus.inputs)]
                    nodes = [*lanes[2], minus, plus, *(p for p in products if p is not None), *a.nodes, *b.nodes]
                    kept = list(dict.fromkeys(nodes))
                    return Turn(a.x, cos, sin, a.interleaved, True, node.outputs[0], kept)
    return None


def _pair_lanes(value: ir.Value | None, ctx: GraphContext) -> tuple[ir.Value, ir.Value, list[ir.Node]] | None:
    """(first, second, nodes) of joined pairs: Concat on the last axis, or on a new one that a Reshape merges."""
    node = ctx.producer(value)
    rank = ctx.rank(value)
    if node is None or rank is None or node.domain != "":
        return None
    if node.op_type == "Concat" and len(node.inputs) == 2 and ctx.attr(node, "axis") in (-1, rank - 1):
        first, second = node.inputs
        return (first, second, [node]) if first is not None and second is not None else None
    stack = ctx.producer(node.inputs[0], "Concat") if node.op_type in ("Reshape", "Flatten") else None
    if stack is None or len(stack.inputs) != 2 or ctx.attr(stack, "axis") not in (-1, rank):
        return None
    lanes: list[ir.Value] = []
    nodes = [node, stack]
    for wide in stack.inputs:
        widen = ctx.producer(wide)
        lane = None if widen is None or widen.op_type not in ("Unsqueeze", "Reshape") else widen.inputs[0]
        shape = dims(lane, ctx)
        if widen is None or lane is None or shape is None or None in shape or dims(wide, ctx) != (*shape, 1):
            return None
        lanes.append(lane)
        nodes.append(widen)
    shape, result = dims(lanes[0], ctx), dims(value, ctx)
    if shape is None or result is None or not isinstance(shape[-1], int) or result != (*shape[:-1], 2 * shape[-1]):
        return None
    return lanes[0], lanes[1], nodes


def _lane(value: ir.Value | None, ctx: GraphContext) -> _Lane | None:
    """`value` as half of the last axis of another tensor: a part, every second element, or one of pairs."""
    part = part_of(value, ctx)
    if part is not None:
        whole = dims(part.x, ctx)
        if whole is None or whole[-1] != 2 * part.size:
            return None
        if part.step == 1 and part.start in (0, part.size):
            return _Lane(part.x, part.start > 0, False, [part.node])
        return _Lane(part.x, part.start > 0, True, [part.node]) if part.step == 2 and part.start in (0, 1) else None
    node = ctx.producer(value)
    if node is None or node.domain != "":
        return None
    nodes, pairs, index = [node], node.inputs[0], None
    if node.op_type == "Gather" and ctx.rank(node.inputs[1]) == 0:
        rank = ctx.rank(pairs)
        last = rank is not None and ctx.attr(node, "axis", 0) in (-1, rank - 1)
        number = ctx.scalar(node.inputs[1]) if last else None
        index = None if number is None else int(number) % 2
    elif node.op_type == "Squeeze" and dims(pairs, ctx) == (*(dims(value, ctx) or (None,)), 1):
        inner = part_of(pairs, ctx)
        if inner is not None and inner.size == 1:
            pairs, index = inner.x, inner.start
            nodes.append(inner.node)
    reshape = ctx.producer(pairs, "Reshape")
    x = None if reshape is None else reshape.inputs[0]
    shape, split = dims(x, ctx), dims(pairs, ctx)
    if reshape is None or x is None or shape is None or split is None or index not in (0, 1) or None in shape:
        return None
    size = shape[-1]
    if not isinstance(size, int) or split != (*shape[:-1], size // 2, 2):
        return None
    return _Lane(x, index == 1, True, [*nodes, reshape])


def _are_pair(a: _Lane, b: _Lane) -> bool:
    return a.x is b.x and not a.second and b.second and a.interleaved == b.interleaved


def _factors(value: ir.Value | None, ctx: GraphContext) -> list[tuple[ir.Value, ir.Value]]:
    """Both ways to read a product."""
    node = ctx.producer(value, "Mul")
    pairs: Iterator[tuple[ir.Value, ir.Value]] = iter(()) if node is None else iter(operands(node))
    return list(pairs)
