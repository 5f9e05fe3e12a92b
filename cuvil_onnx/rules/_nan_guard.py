"""The guard that exporters write behind a softmax: Where(IsNaN(p), 0, p), so that a row without any key gives 0.

torch's scaled_dot_product_attention promises 0 for a query that may see no key. A row whose every score is -inf is
NaN after the softmax; the guard makes it 0, and the product with the values as well: cuvil::Attention's
masked_rows_zero. For scores that are not finite for another reason (a query that is NaN) the fused form gives NaN where
the guard hid it.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from cuvil_onnx.rewrite.graph import GraphContext

LOWEST_OPSET = 11  # Equal of floats

_MOVES = ("Expand", "Unsqueeze", "Squeeze", "Reshape", "Identity", "Slice", "Transpose")


def find(value: ir.Value, ctx: GraphContext) -> tuple[ir.Value, list[ir.Node]] | None:
    """(guarded value, nodes) when the only use of `value` is such a guard."""
    users = ctx.users(value) if ctx.use_count(value) == 2 and not value.is_graph_output() else ()
    if len(users) != 2 or any(u.domain or u.graph is not value.graph for u in users):
        return None
    for test, choice in (users, users[::-1]):
        if test.op_type != "IsNaN" or choice.op_type != "Where" or ctx.single_user(test.outputs[0]) is not choice:
            continue
        zero = ctx.scalar(choice.inputs[1])
        if choice.inputs[0] is test.outputs[0] and zero == 0 and choice.inputs[2] is value:
            return choice.outputs[0], [test, choice]
    return None


def may_hide_rows(mask: ir.Value, ctx: GraphContext) -> bool:
    """Whether an additive mask can be -inf; False only when that is impossible."""
    value: ir.Value | None = mask
    while (node := ctx.producer(value)) is not None and node.domain == "" and node.op_type in _MOVES:
        value = node.inputs[0]
    node = ctx.producer(value, "Where")
    parts = [value] if node is None else [*node.inputs[1:3]]
    for part in parts:
        array = ctx.constant(part)
        if array is None or not np.isfinite(array.astype(np.float64)).all():
            return True
    return False
