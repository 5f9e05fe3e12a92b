"""Recognises GELU written with Erf.

Before: 0.5 * x * (1 + erf(x / sqrt 2)), the factors in any order and grouping, divisions as multiplications or not.
After: Gelu(x), or cuvil::Gelu before opset 20.
Exactness: rounding; one function is evaluated in float32 where five operators rounded in turn.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.rule import Exactness, Match, Phase, Refusal, Replacement, Rule
from cuvil_onnx.rules import _gelu

ARGUMENT = {1: math.sqrt(0.5)}


class GeluErf(Rule):
    """See the module's text."""

    name = "gelu_erf"
    phase = Phase.STRUCTURAL
    exactness = Exactness.ROUNDING
    roots = (("", "Erf"),)

    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        return _gelu.match(node, ARGUMENT, ctx)

    def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
        return _gelu.rewrite(match, "none", ctx)
