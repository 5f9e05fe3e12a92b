"""Recognises c * x * (1 + f(p(x))), the shape of every written-out GELU, in any order and grouping."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rules._common import digits, near, number_beside, scalar_factor, scalar_term

MAX_DEPTH = 8
MAX_POWER = 3

Polynomial = dict[int, float]


@dataclass(frozen=True)
class Gate:
    """A match: `output` = 0.5 * x * (1 + f(argument)), where argument = sum of coefficient * x^power."""

    x: ir.Value
    argument: Polynomial
    output: ir.Value
    nodes: tuple[ir.Node, ...]


def gates(gate: ir.Node, ctx: GraphContext) -> Iterator[Gate]:
    """The ways to read the surroundings of `gate` (the node that computes f)."""
    plus = ctx.single_user(gate.outputs[0])
    term = None if plus is None else scalar_term(plus, ctx)
    if plus is None or term is None or term[0] is not gate.outputs[0] or term[1] != 1.0:
        return
    yield from _climb(plus.outputs[0], 1.0, None, [gate, plus], gate, ctx)


def polynomial(
    value: ir.Value, x: ir.Value, ctx: GraphContext, nodes: list[ir.Node], depth: int = 0
) -> Polynomial | None:
    """`value` as a polynomial in x; appends the nodes that compute it. None when it is none."""
    if value is x:
        return {1: 1.0}
    if ctx.is_constant(value):
        number = number_beside(value, x, ctx)
        return None if number is None else {0: number}
    node = ctx.producer(value)
    if node is None or node.domain != "" or depth > MAX_DEPTH or len(node.outputs) != 1:
        return None
    if node not in nodes:
        nodes.append(node)
    parts: list[Polynomial] = []
    for operand in node.inputs:
        part = None if operand is None else polynomial(operand, x, ctx, nodes, depth + 1)
        if part is None:
            return None
        parts.append(part)
    return _combine(node.op_type, parts)


def matches(gate: Gate, expected: Polynomial, ctx: GraphContext) -> bool:
    """Whether the coefficients of the argument agree up to the rounding of written constants."""
    kept = {power: c for power, c in gate.argument.items() if c != 0.0}
    tolerance = digits(gate.x, ctx)
    return kept.keys() == expected.keys() and all(near(kept[p], expected[p], tolerance) for p in kept)


def _climb(
    value: ir.Value, factor: float, x: ir.Value | None, nodes: list[ir.Node], gate: ir.Node, ctx: GraphContext
) -> Iterator[Gate]:
    """Follows the product from the gate to its end, collecting the constant factor and the one factor x."""
    if x is not None and near(factor, 0.5, digits(x, ctx)):
        inner: list[ir.Node] = []
        first = gate.inputs[0]
        argument = None if first is None else polynomial(first, x, ctx, inner)
        if argument is not None:
            yield Gate(x, argument, value, tuple(dict.fromkeys([*inner, *nodes])))
        return
    user = ctx.single_user(value)
    if user is None or len(nodes) > MAX_DEPTH:
        return
    scaled = scalar_factor(user, ctx)
    if scaled is not None and scaled[0] is value:
        yield from _climb(user.outputs[0], factor * scaled[1], x, [*nodes, user], gate, ctx)
    elif user.op_type == "Mul" and user.domain == "" and x is None:
        other = user.inputs[1] if user.inputs[0] is value else user.inputs[0]
        if other is None:
            return
        yield from _climb(user.outputs[0], factor, other, [*nodes, user], gate, ctx)
        maker = ctx.producer(other)
        inside = None if maker is None else scalar_factor(maker, ctx)
        if maker is not None and inside is not None:
            yield from _climb(user.outputs[0], factor * inside[1], inside[0], [*nodes, maker, user], gate, ctx)


def _combine(op: str, parts: list[Polynomial]) -> Polynomial | None:
    a = parts[0]
    if op == "Neg":
        return {p: -c for p, c in a.items()}
    if len(parts) != 2:
        return None
    b = parts[1]
    if op in ("Add", "Sub"):
        sign = 1.0 if op == "Add" else -1.0
        return {p: a.get(p, 0.0) + sign * b.get(p, 0.0) for p in a.keys() | b.keys()}
    if op == "Mul":
        return _multiply(a, b)
    if op == "Div" and b.keys() == {0} and b[0]:
        return {p: c / b[0] for p, c in a.items()}
    if op == "Pow" and b.keys() == {0} and b[0] in (1.0, 2.0, 3.0):
        result: Polynomial | None = {0: 1.0}
        for _ in range(int(b[0])):
            result = None if result is None else _multiply(result, a)
        return result
    return None


def _multiply(a: Polynomial, b: Polynomial) -> Polynomial | None:
    result: Polynomial = {}
    for p, c in a.items():
        for q, d in b.items():
            if p + q > MAX_POWER:
                return None
            result[p + q] = result.get(p + q, 0.0) + c * d
    return result
