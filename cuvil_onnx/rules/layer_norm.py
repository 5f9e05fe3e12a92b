"""Recognises layer normalization written out.

Before: d = x - ReduceMean(x); d / Sqrt(ReduceMean(d * d) + epsilon) * scale + bias over the last axis; the square
        as Pow or Mul, the division as Reciprocal, 1 / x or Pow(-0.5) and Mul; scale and bias optional; for 16-bit
        tensors the casts to float32 and back around it.
After:  LayerNormalization from opset 17 on, else cuvil::LayerNorm.
Exactness: rounding; sums in another order, 16-bit results rounded once.
"""

from __future__ import annotations

import onnx_ir as ir

from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.rule import Exactness, Match, Phase, Refusal, Replacement, Rule
from cuvil_onnx.rules import _norm


class LayerNorm(Rule):
    """See the module's text."""

    name = "layer_norm"
    phase = Phase.STRUCTURAL
    exactness = Exactness.ROUNDING
    roots = (("", "Sqrt"), ("", "Pow"))

    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        return _norm.match(node, ctx, centred=True)

    def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
        return _norm.rewrite(match, ctx, centred=True)
