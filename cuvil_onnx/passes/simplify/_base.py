"""Shared by the rules that replace a node by one of its inputs."""

from __future__ import annotations

import onnx_ir as ir

from cuvil_onnx.rewrite.apply import can_take_over
from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.rule import Exactness, Match, Phase, Refusal, Replacement, Rule


class SimplifyRule(Rule):
    """A cleanup rule that changes no bit of any result."""

    phase = Phase.CLEANUP
    exactness = Exactness.EXACT

    def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
        """Without new nodes: the match's value ``x`` takes over."""
        return Replacement((), (match.values["x"],))


def drop(node: ir.Node, value: ir.Value | None) -> Match | None:
    """The match that removes ``node`` and lets ``value`` stand for its only used output.

    None when the node is already the Identity that a graph output needs (removing it would only bring it back).
    """
    if value is None:
        return None
    output = node.outputs[0]
    if node.op_type == "Identity" and output.is_graph_output() and not can_take_over(output, value):
        return None
    return Match(node, (node,), (output,), values={"x": value})
