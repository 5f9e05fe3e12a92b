"""Identity(x) -> x, and variadic or splitting operators with a single operand."""

from __future__ import annotations

import onnx_ir as ir

from cuvil_onnx.passes.simplify._base import SimplifyRule, drop
from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.rule import Match, Refusal


class Identity(SimplifyRule):
    """Exact. Sum, Max, Min, Mean and Concat of one operand and Split into one part are identities as well."""

    name = "identity"
    roots = tuple(("", op) for op in ("Identity", "Sum", "Max", "Min", "Mean", "Concat", "Split"))

    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        if node.op_type == "Split":
            return drop(node, node.inputs[0]) if len(node.outputs) == 1 else None
        return drop(node, node.inputs[0]) if len(node.inputs) == 1 else None
