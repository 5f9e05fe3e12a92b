"""Small helpers for anchored match functions: commutative operands and chains."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from cuvil_onnx.rewrite.graph import GraphContext


def operands(node: ir.Node) -> Iterator[tuple[ir.Value, ir.Value]]:
    """Both orders of a two-input node's operands, so that a match function need not care which one came first."""
    a, b = node.inputs[:2]
    if a is None or b is None:
        return
    yield a, b
    if a is not b:
        yield b, a


def with_constant(node: ir.Node, ctx: GraphContext) -> tuple[ir.Value, ir.Value] | None:
    """(other operand, constant operand) of a two-input node of which exactly one operand is constant."""
    for other, const in operands(node):
        if ctx.is_constant(const) and not ctx.is_constant(other):
            return other, const
    return None


def with_scalar(node: ir.Node, ctx: GraphContext, expected: float, tolerance: float = 1e-6) -> ir.Value | None:
    """The other operand of a commutative node one operand of which is the constant ``expected`` (relative tolerance).

    The constant may have any rank as long as it has one element and does not raise the rank of the result.
    """
    for other, const in operands(node):
        number = ctx.scalar(const)
        if number is None or abs(float(number) - expected) > tolerance * max(1.0, abs(expected)):
            continue
        const_rank, other_rank = ctx.rank(const), ctx.rank(other)
        if const_rank == 0 or (const_rank is not None and other_rank is not None and const_rank <= other_rank):
            return other
    return None


def from_op(node: ir.Node, op_type: str, ctx: GraphContext, domain: str = "") -> Iterator[tuple[ir.Node, ir.Value]]:
    """(producer, other operand) for each operand of a commutative node that is computed by ``op_type``."""
    for made, other in operands(node):
        producer = ctx.producer(made, op_type, domain)
        if producer is not None:
            yield producer, other
