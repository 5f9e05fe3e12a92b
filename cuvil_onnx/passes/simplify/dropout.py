"""Dropout in inference mode is an identity."""

from __future__ import annotations

import onnx_ir as ir

from cuvil_onnx.passes.simplify._base import SimplifyRule, drop
from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.rule import Match, Refusal


class Dropout(SimplifyRule):
    """Exact. Before opset 12 Dropout always infers; since then ``training_mode`` must be absent or a constant false."""

    name = "dropout"
    roots = (("", "Dropout"),)

    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        training = node.inputs[2] if len(node.inputs) > 2 else None
        if training is not None and ctx.scalar(training) is not False:
            return Refusal("training mode is not a constant false", training)
        return drop(node, node.inputs[0])
