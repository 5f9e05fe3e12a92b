"""The guard that exporters write behind a softmax: Where(IsNaN(p), 0, p), so that a row without any key gives 0.

torch's scaled_dot_product_attention promises 0 for a query that may see no key. A row whose every score is -inf is
NaN after the softmax; the guard makes it 0, and the product with the values as well. cuvil::Attention gives NaN there:
the guard moves behind it, as a choice by the rows of the mask. For scores that are not finite for another reason (a
query that is NaN) the fused form gives NaN where the guard hid it.
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


def rows(mask: ir.Value, ctx: GraphContext) -> list[ir.Node]:
    """Nodes whose last gives, for a mask [.., 1, S, T], the bool [.., S, 1]: every key of the row is hidden."""
    dtype, rank = ctx.dtype(mask), ctx.rank(mask)
    assert dtype is not None and rank is not None
    attrs, inputs = _axes([-1], ctx.opset() >= 18, ctx)
    nodes = [ctx.node("ReduceMax", [mask, *inputs], {**attrs, "keepdims": 1})]
    if rank == 4:
        attrs, inputs = _axes([1], ctx.opset() >= 13, ctx)
        nodes.append(ctx.node("Squeeze", [nodes[-1].outputs[0], *inputs], attrs))
    hidden = ctx.initializer(ir.Tensor(np.array(-np.inf, dtype.numpy()), dtype=dtype), "hidden")
    nodes.append(ctx.node("Equal", [nodes[-1].outputs[0], hidden]))
    return nodes


def choose_zero(value: ir.Value, hidden: ir.Value, ctx: GraphContext) -> ir.Node:
    """`value`, and 0 in the rows that are `hidden`."""
    dtype = ctx.dtype(value)
    assert dtype is not None
    zero = ctx.initializer(ir.Tensor(np.array(0, dtype.numpy()), dtype=dtype), "zero")
    return ctx.node("Where", [hidden, zero, value], like=value)


def _axes(axes: list[int], as_input: bool, ctx: GraphContext) -> tuple[dict[str, list[int]], list[ir.Value]]:
    """Axes as an attribute, or as the input that they became in a later opset."""
    return ({}, [ctx.initializer(np.array(axes, np.int64), "axes")]) if as_input else ({"axes": axes}, [])
