"""Adds the one row that a constant index selects, instead of gathering it for every element.

Before: Add(x, Gather(table [V, H], ids)), every id the same constant (torch's token_type_ids), by Slice and Expand.
After:  Add(x, table[id]), a bias that what follows can take in.
Exactness: exact.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.pattern import operands
from cuvil_onnx.rewrite.rule import Exactness, Match, Phase, Refusal, Replacement, Rule
from cuvil_onnx.rules._common import same_shape

MAX_NODES = 16

_MOVES = ("Slice", "Expand", "Reshape", "Unsqueeze", "Squeeze", "Transpose", "Identity", "Flatten")
"""Operators whose every element is one of their first input's."""


class GatheredRow(Rule):
    """See the module's text."""

    name = "gathered_row"
    phase = Phase.STRUCTURAL
    exactness = Exactness.EXACT
    roots = (("", "Add"),)

    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        for value, other in operands(node):
            gather = ctx.producer(value, "Gather")
            if gather is None or ctx.attr(gather, "axis", 0) not in (0, -2):
                continue
            table = gather.inputs[0]
            shape = ctx.static_shape(table)
            index = _only_element(gather.inputs[1], ctx)
            if index is None or shape is None or len(shape) != 2 or not ctx.is_constant(table):
                continue
            if not -shape[0] <= index < shape[0]:
                return Refusal("the index is outside of the table", gather)
            if not same_shape(other, node.outputs[0], ctx):
                return Refusal("the other operand is not known to have the shape of the sum", other)
            own = (gather,) if ctx.single_user(value) is node else ()
            return Match(node, (node, *own), values={"other": other, "table": table}, attrs={"index": index})
        return None

    def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
        table = match.values["table"]
        rows, dtype = ctx.constant(table, max_elements=None), ctx.dtype(table)
        assert rows is not None and dtype is not None
        row = ctx.initializer(ir.Tensor(np.array(rows[match.attrs["index"]]), dtype=dtype), "row")
        node = ctx.node("Add", [match.values["other"], row], like=match.root.outputs[0])
        return Replacement((node,), node.outputs)


def _only_element(value: ir.Value | None, ctx: GraphContext) -> int | None:
    """The integer that every element of a computed tensor is; None when it may vary."""
    for _ in range(MAX_NODES):
        numbers = ctx.constant(value)
        if numbers is not None:
            same = numbers.dtype.kind in "iu" and numbers.size and (numbers == numbers.flat[0]).all()
            return int(numbers.flat[0]) if same else None
        node = ctx.producer(value)
        if node is None or node.domain:
            return None
        if node.op_type == "ConstantOfShape":
            fill = ctx.attr(node, "value")
            number = None if fill is None else fill.numpy().reshape(-1)[0]
            return int(number) if number is not None and number.dtype.kind in "iu" else None
        widens = node.op_type == "Cast" and ctx.attr(node, "to") == ir.DataType.INT64
        if node.op_type not in _MOVES and not (widens and ctx.dtype(node.inputs[0]) == ir.DataType.INT32):
            return None
        value = node.inputs[0]
    return None
