"""Recognises root mean square normalization written out.

Before: x / Sqrt(ReduceMean(x * x) + epsilon) * scale over the last axis, in the forms that the layer_norm rule knows.
After:  RMSNormalization from opset 23 on, else cuvil::LayerNorm with rms = 1.
Exactness: rounding; sums in another order, 16-bit results rounded once.
"""

from __future__ import annotations

import onnx_ir as ir

from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.rule import Exactness, Match, Phase, Refusal, Replacement, Rule
from cuvil_onnx.rules import _norm


class RmsNorm(Rule):
    """See the module's text."""

    name = "rms_norm"
    phase = Phase.STRUCTURAL
    exactness = Exactness.ROUNDING
    roots = (("", "Sqrt"), ("", "Pow"))

    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        return _norm.match(node, ctx, centred=False)

    def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
        return _norm.rewrite(match, ctx, centred=False)
