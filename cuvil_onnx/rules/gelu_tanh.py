"""Recognises the tanh approximation of GELU.

Before: 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))), the polynomial in any form (Pow, products, factored).
After: Gelu(x, approximate="tanh"), or cuvil::Gelu before opset 20.
Exactness: rounding; one function is evaluated in float32 where eight operators rounded in turn.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.rule import Exactness, Match, Phase, Refusal, Replacement, Rule
from cuvil_onnx.rules import _gelu

ARGUMENT = {1: math.sqrt(2 / math.pi), 3: 0.044715 * math.sqrt(2 / math.pi)}


class GeluTanh(Rule):
    """See the module's text."""

    name = "gelu_tanh"
    phase = Phase.STRUCTURAL
    exactness = Exactness.ROUNDING
    roots = (("", "Tanh"),)

    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        return _gelu.match(node, ARGUMENT, ctx)

    def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
        return _gelu.rewrite(match, "tanh", ctx)
