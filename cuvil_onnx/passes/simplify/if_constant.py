"""If with a condition that never changes becomes the branch that is taken."""

from __future__ import annotations

import onnx_ir as ir

from cuvil_onnx.passes.simplify._base import SimplifyRule
from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.rule import Match, Refusal, Replacement


class IfConstant(SimplifyRule):
    """Exact.

    Before: If(constant, then_branch, else_branch).
    After:  the nodes of the taken branch, under fresh names; its initializers move to the main graph.
    """

    name = "if_constant"
    roots = (("", "If"),)

    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        condition = ctx.scalar(node.inputs[0])
        branch = None if condition is None else ctx.attr(node, "then_branch" if condition else "else_branch")
        if not isinstance(branch, ir.Graph) or len(branch.outputs) != len(node.outputs):
            return None
        if any(value.name == "" for value in node.outputs):
            return None
        return Match(node, (node,), tuple(node.outputs), attrs={"branch": branch})

    def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
        branch: ir.Graph = match.attrs["branch"]
        values = list(branch.outputs)
        branch.outputs.clear()
        moved: dict[ir.Value, ir.Value] = {}
        for name, value in list(branch.initializers.items()):
            tensor = value.const_value
            if tensor is None:
                continue
            del branch.initializers[name]
            moved[value] = ctx.initializer(tensor, name)
            for user, index in value.uses():
                user.replace_input_with(index, moved[value])
        nodes = list(branch)
        branch.remove(nodes)
        for node in nodes:
            node.name = ctx.fresh_name(node.name or node.op_type)
            for output in node.outputs:
                if output.name:
                    output.name = ctx.fresh_name(output.name)
        return Replacement(nodes, [moved.get(value, value) for value in values])
