"""Looks up positions once, ahead of time: rows of a table at consecutive positions are a part of the table.

Before: Gather(table [V, H], Slice(ids)), ids a constant (torch's position_ids), cut to the length of the sequence.
After:  Slice(rows), rows = table[ids].
Exactness: exact.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.rule import Exactness, Match, Phase, Refusal, Replacement, Rule

MAX_GROWTH = 1 << 20
"""Bytes by which the looked-up rows may exceed the table."""


class SlicedGather(Rule):
    """See the module's text."""

    name = "sliced_gather"
    phase = Phase.STRUCTURAL
    exactness = Exactness.EXACT
    roots = (("", "Gather"),)

    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        table, cut = node.inputs[0], ctx.producer(node.inputs[1], "Slice")
        shape = ctx.static_shape(table)
        if cut is None or shape is None or len(shape) != 2 or not ctx.is_constant(table) or len(cut.inputs) < 3:
            return None
        ids = ctx.constant(cut.inputs[0])
        if ids is None or ids.ndim == 0 or ctx.attr(node, "axis", 0) not in (0, -2):
            return None
        if ids.size == 0 or ids.min() < -shape[0] or ids.max() >= shape[0]:
            return Refusal("an index is outside of the table", cut.inputs[0])
        tensor = ctx.tensor(table)
        if tensor is None or tensor.dtype == ir.DataType.STRING:
            return None
        if (ids.size - shape[0]) * (tensor.nbytes // max(shape[0], 1)) > MAX_GROWTH:
            return Refusal("the rows would take more memory than the table", table)
        axes = cut.inputs[3] if len(cut.inputs) > 3 else None
        if axes is not None and ctx.ints(axes) is None:
            return Refusal("the axes of the slice are computed", axes)
        own = (cut,) if ctx.single_user(cut.outputs[0]) is node else ()
        return Match(node, (node, *own), attrs={"cut": cut})

    def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
        table, cut = match.root.inputs[0], match.attrs["cut"]
        ids, rows, dtype = ctx.constant(cut.inputs[0]), ctx.constant(table, max_elements=None), ctx.dtype(table)
        assert ids is not None and rows is not None and dtype is not None
        looked_up = ctx.initializer(ir.Tensor(np.ascontiguousarray(rows[ids]), dtype=dtype), "rows")
        inputs = [looked_up, *cut.inputs[1:]]
        axes = ctx.ints(cut.inputs[3]) if len(cut.inputs) > 3 and cut.inputs[3] is not None else None
        if axes is not None and min(axes) < 0:  # counted from the end, where there is one more axis now
            given = ctx.constant(cut.inputs[3])
            assert given is not None
            counted = [a + ids.ndim if a < 0 else a for a in axes]
            inputs[3] = ctx.initializer(np.array(counted, given.dtype), "axes")
        node = ctx.node("Slice", inputs, like=match.root.outputs[0])
        return Replacement((node,), node.outputs)
