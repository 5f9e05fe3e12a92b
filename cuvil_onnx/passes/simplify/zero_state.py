"""Recurrences that start from zeros."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from cuvil_onnx.passes.simplify._base import SimplifyRule
from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.rule import Match, Refusal, Replacement

MAX_NODES = 16

_FIRST_STATE = 5  # initial_h; LSTM has initial_c next
_MOVES = ("Expand", "Tile", "Slice", "Reshape", "Unsqueeze", "Squeeze", "Transpose", "Identity", "Gather", "Split")
"""Operators whose every element is one of their first input's."""


class ZeroState(SimplifyRule):
    """Exact. LSTM, GRU or RNN with an initial state of zeros -> the same without: absent is zero."""

    name = "zero_state"
    roots = (("", "LSTM"), ("", "GRU"), ("", "RNN"))

    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        places = range(_FIRST_STATE, min(len(node.inputs), _FIRST_STATE + 1 + (node.op_type == "LSTM")))
        zero = [i for i in places if node.inputs[i] is not None and _is_zero(node.inputs[i], ctx)]
        return Match(node, (node,), attrs={"zero": zero}) if zero else None

    def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
        node = match.root
        inputs = [None if i in match.attrs["zero"] else v for i, v in enumerate(node.inputs)]
        while inputs[-1] is None:
            inputs.pop()
        attrs = {name: a.value for name, a in node.attributes.items()}
        made = ctx.node(node.op_type, inputs, attrs, like=list(node.outputs))
        for new, old in zip(made.outputs, node.outputs, strict=True):
            if not old.name:
                new.name = ""  # not wanted
        used = [i for i, v in enumerate(node.outputs) if ctx.use_count(v) or v.is_graph_output()]
        return Replacement((made,), [made.outputs[i] for i in used])


def _is_zero(value: ir.Value | None, ctx: GraphContext) -> bool:
    """Whether every element is +0, whatever the shape."""
    for _ in range(MAX_NODES):
        numbers = ctx.constant(value)
        if numbers is not None:
            return not numbers.any() and not np.signbit(numbers.astype(np.float32)).any()
        node = ctx.producer(value)
        if node is None or node.domain:
            return False
        if node.op_type == "ConstantOfShape":
            fill = ctx.attr(node, "value")
            return fill is None or bool((fill.numpy() == 0).all() and not np.signbit(fill.numpy()).any())
        if node.op_type not in _MOVES:
            return False
        value = node.inputs[0]
    return False
