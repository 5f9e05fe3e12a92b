"""Dequantizes the rows that are looked up instead of the whole table, in every run.

Before: Gather(DequantizeLinear(codes [V, D], scales, zero points), ids) along the first axis, all but ids constant,
        with one scale for the table, for each row or column, or for groups along the rows.
After:  com.microsoft::GatherBlockQuantized for codes of 4 bits, which ONNX's Gather does not take; for 8 bits
        DequantizeLinear(Gather(codes, ids), Gather(scales, ids), Gather(zero points, ids)).
Exactness: exact.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from cuvil_onnx.quantize.pack import code_tensor, codes_of
from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.rule import Exactness, Match, Phase, Refusal, Replacement, Rule
from cuvil_onnx.rules._codes import CODES, FOUR_BITS
from cuvil_onnx.rules._common import HALF

GROUPED_OPSET = 21
MIN_BLOCK = 16
"""GatherBlockQuantized takes powers of two from here on."""


class DequantizedGather(Rule):
    """See the module's text."""

    name = "dequantized_gather"
    phase = Phase.STRUCTURAL
    exactness = Exactness.EXACT
    roots = (("", "Gather"),)

    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        table = ctx.producer(node.inputs[0], "DequantizeLinear")
        if table is None:
            return None
        codes, scales, *zeros = table.inputs
        shape, scale_shape = ctx.static_shape(codes), ctx.static_shape(scales)
        if not all(v is None or ctx.is_constant(v) for v in table.inputs) or shape is None or scale_shape is None:
            return None
        if ctx.dtype(codes) not in CODES or len(shape) != 2 or 0 in shape:
            return None
        if ctx.attr(node, "axis", 0) not in (0, -2):
            return Refusal("columns of a quantized table are looked up", node)
        group = self._group(table, shape, scale_shape, ctx)
        if isinstance(group, Refusal):
            return group
        if ctx.dtype(codes) in FOUR_BITS:
            if group < MIN_BLOCK or group & (group - 1):
                return Refusal(f"groups of {group} elements, a power of two from {MIN_BLOCK} on is required", table)
            if ctx.dtype(scales) not in (ir.DataType.FLOAT, *HALF) or ctx.dtype(scales) != ctx.dtype(node.outputs[0]):
                return Refusal("the scales are not of the table's type, of 16 or 32 bits", scales)
        elif group and ctx.opset() < GROUPED_OPSET:
            return Refusal(f"scales of rows need opset {GROUPED_OPSET}, the model has {ctx.opset()}", table)
        alone = ctx.single_user(table.outputs[0]) is node
        nodes = (node, table) if alone else (node,)
        zero = zeros[0] if zeros else None
        values = {"codes": codes, "scales": scales, "zeros": zero, "ids": node.inputs[1]}
        return Match(node, nodes, node.outputs, values, {"group": group, "table": table})

    def _group(
        self, table: ir.Node, shape: tuple[int, ...], scale_shape: tuple[int, ...], ctx: GraphContext
    ) -> int | Refusal:
        """Elements of a row that share a scale, at least the whole row for a scale a row; 0: rows do not differ."""
        axis, block = int(ctx.attr(table, "axis", 1)) % 2, int(ctx.attr(table, "block_size", 0))
        four = ctx.dtype(table.inputs[0]) in FOUR_BITS
        whole = max(MIN_BLOCK, 1 << (shape[1] - 1).bit_length()) if four else shape[1]
        if block:
            return block if axis == 1 else Refusal("groups of rows share their scales", table)
        if int(np.prod(scale_shape)) == 1:
            return whole if four else 0
        if axis == 0:
            return whole
        return Refusal("each column of a table of 4 bits has a scale of its own", table) if four else 0

    def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
        codes, ids, group = match.values["codes"], match.values["ids"], match.attrs["group"]
        table: ir.Node = match.attrs["table"]
        shape = ctx.static_shape(codes)
        assert codes is not None and shape is not None
        parts = [match.values["scales"], match.values["zeros"]]
        if group and not ctx.attr(table, "block_size", 0):
            parts = [None if v is None else _column(v, shape[0], ctx) for v in parts]
        result = match.outputs[0]
        if ctx.dtype(codes) in FOUR_BITS:
            attrs = {"gather_axis": 0, "quantize_axis": 1, "block_size": group}
            inputs = [codes, ids, *parts] if parts[1] is not None else [codes, ids, parts[0]]
            found = ctx.node("GatherBlockQuantized", inputs, attrs, domain="com.microsoft", like=result)
            return Replacement((found,), found.outputs)
        nodes = [ctx.node("Gather", [codes, ids])]
        inputs = [nodes[0].outputs[0], *parts]
        if group:
            nodes += [ctx.node("Gather", [v, ids]) for v in parts if v is not None]
            inputs = [n.outputs[0] for n in nodes]
        for value, source in zip(inputs, (codes, *parts), strict=False):
            if value is not None and source is not None and value is not source:
                value.type = source.type
        kept = {k: ctx.attr(table, k) for k in ("output_dtype",) if ctx.attr(table, k)}
        attrs = kept | ({"axis": -1, "block_size": group} if group else {"axis": -1})
        while inputs[-1] is None:
            inputs.pop()
        nodes.append(ctx.node("DequantizeLinear", inputs, attrs, like=result))
        return Replacement(nodes, nodes[-1].outputs)


def _column(value: ir.Value, rows: int, ctx: GraphContext) -> ir.Value:
    """Scales or zero points of each row, or one for all, as [rows, 1]."""
    tensor = ctx.tensor(value)
    assert tensor is not None
    if tensor.dtype in CODES:
        array = np.broadcast_to(codes_of(tensor).reshape(-1), (rows,)).reshape(rows, 1)
        return ctx.initializer(code_tensor(array, tensor.dtype), f"{value.name}_rows")
    array = np.broadcast_to(np.asarray(tensor.numpy()).reshape(-1), (rows,)).reshape(rows, 1)
    return ctx.initializer(ir.Tensor(np.ascontiguousarray(array), dtype=tensor.dtype), f"{value.name}_rows")
