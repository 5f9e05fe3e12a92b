"""Arithmetic with the neutral element."""

from __future__ import annotations

import math

import onnx_ir as ir

from cuvil_onnx.passes.simplify._base import SimplifyRule, drop
from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.pattern import operands
from cuvil_onnx.rewrite.rule import Match, Refusal


class Neutral(SimplifyRule):
    """Exact: x * 1, x / 1, x - 0 and x + (-0) give x; x + 0 only for integers (it turns -0 into +0).

    The constant must have one element and no higher rank than x, so that the shape stays.
    """

    name = "neutral"
    roots = (("", "Mul"), ("", "Div"), ("", "Add"), ("", "Sub"))

    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        pairs = list(operands(node))
        for x, const in pairs if node.op_type in ("Mul", "Add") else pairs[:1]:
            number = ctx.scalar(const)
            rank, const_rank = ctx.rank(x), ctx.rank(const)
            if number is None or const_rank is None or (const_rank and (rank is None or const_rank > rank)):
                continue
            if _is_neutral(node.op_type, number):
                return drop(node, x)
        return None


def _is_neutral(op_type: str, number: float | int | bool) -> bool:
    if op_type in ("Mul", "Div"):
        return number == 1
    if number != 0:
        return False
    if isinstance(number, int):
        return True
    negative = math.copysign(1.0, number) < 0
    return negative if op_type == "Add" else not negative
