"""Writes the transpose of the last two axes as one node.

Before: x [A, B, C, D], Reshape [A * B, C, D], Transpose(0, 2, 1), Reshape [A, B, D, C]: what torch's dynamo exporter
        makes of k.transpose(-1, -2).
After:  Transpose(x, perm=[0, 1, 3, 2]).
Exactness: exact.
"""

from __future__ import annotations

import onnx_ir as ir

from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.rule import Exactness, Match, Phase, Refusal, Replacement, Rule
from cuvil_onnx.rules._common import dims


class BatchedTranspose(Rule):
    """See the module's text."""

    name = "batched_transpose"
    phase = Phase.CLEANUP
    exactness = Exactness.EXACT
    roots = (("", "Transpose"),)

    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        flatten = ctx.producer(node.inputs[0], "Reshape")
        restore = ctx.single_user(node.outputs[0], "Reshape")
        if flatten is None or restore is None or tuple(ctx.attr(node, "perm", ())) != (0, 2, 1):
            return None
        x, flat, result = flatten.inputs[0], dims(flatten.outputs[0], ctx), dims(restore.outputs[0], ctx)
        whole = dims(x, ctx)
        if x is None or whole is None or flat is None or result is None or len(whole) != 4 or len(result) != 4:
            return None
        wanted = (*whole[:2], whole[3], whole[2])
        if None in whole or flat[1:] != whole[2:] or result != wanted:
            return Refusal("the reshapes around the transpose are not known to join and split the first two axes", node)
        # Others may read the flattened tensor; it stays for them.
        alone = ctx.single_user(flatten.outputs[0]) is node
        nodes = (flatten, node, restore) if alone else (node, restore)
        return Match(node, nodes, outputs=restore.outputs, values={"x": x})

    def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
        node = ctx.node("Transpose", [match.values["x"]], {"perm": (0, 1, 3, 2)}, like=match.outputs[0])
        return Replacement((node,), node.outputs)
