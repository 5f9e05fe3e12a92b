"""Reorders a packed projection so that queries, keys and values are blocks instead of alternating by head.

Before: x W + b, constant, Reshape [B, S, N, 3 * H], perhaps Transpose [B, N, S, 3 * H], cut into three by Split or
        Slice on the last axis: GPT-NeoX and its kin.
After:  x W' + b' with permuted columns, Split into three [B, S, N * H], each split into heads and transposed as before:
        what other models write, and the rules for attention and rotary embedding know.
Exactness: rounding; the same sums, in a product whose columns stand in another order.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.rule import Exactness, Match, Phase, Refusal, Replacement, Rule
from cuvil_onnx.rules._common import dims
from cuvil_onnx.rules._heads import SPLIT
from cuvil_onnx.rules._parts import Part, part_of
from cuvil_onnx.rules._projection import projection, reorder


class QkvByHead(Rule):
    """See the module's text."""

    name = "qkv_by_head"
    phase = Phase.STRUCTURAL
    exactness = Exactness.ROUNDING
    roots = (("", "Reshape"),)

    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        shape, source = dims(node.outputs[0], ctx), node.inputs[0]
        if shape is None or len(shape) != 4 or source is None or ctx.producer(source) is None:
            return None
        heads, width = shape[2:]
        if not isinstance(heads, int) or not isinstance(width, int) or width % 3 or heads < 2:
            return None
        transpose = ctx.single_user(node.outputs[0], "Transpose")
        if transpose is not None and tuple(ctx.attr(transpose, "perm", ())) != SPLIT:
            return None
        whole = node.outputs[0] if transpose is None else transpose.outputs[0]
        parts = _thirds(whole, width // 3, ctx)
        if parts is None or dims(source, ctx) != (*shape[:2], heads * width):
            return None
        made = projection(source, ctx)
        if made is None:
            return Refusal("the packed heads are not a product with constant weights", node)
        if len(ctx.users(source)) != 1 or any(ctx.use_count(n.outputs[0]) != 1 for n in made.nodes):
            return Refusal("the projection is read elsewhere too", source)
        cutters = dict.fromkeys(part.node for part in parts.values())
        nodes = [*made.nodes, node, *([] if transpose is None else [transpose]), *cutters]
        attrs = {"made": made, "heads": heads, "size": width // 3, "transposed": transpose is not None}
        return Match(node, nodes, list(parts), {}, attrs)

    def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
        made, heads, size = (match.attrs[name] for name in ("made", "heads", "size"))
        columns = np.arange(3 * heads * size).reshape(heads, 3, size).transpose(1, 0, 2).reshape(-1)
        nodes = reorder(made, columns, "qkv", ctx)
        packed = nodes[-1].outputs[0]
        attrs = {"axis": 2, "num_outputs": 3} if ctx.opset() >= 18 else {"axis": 2}
        split = ctx.node("Split", [packed], attrs, num_outputs=3)
        nodes.append(split)
        target = ctx.initializer(np.array([0, 0, heads, size], np.int64), "heads")
        rows = (dims(packed, ctx) or ())[:2]
        results: list[ir.Value] = []
        for block, like in zip(split.outputs, match.outputs, strict=True):
            block.type, block.shape = packed.type, ir.Shape([*rows, heads * size])
            nodes.append(ctx.node("Reshape", [block, target]))
            value = nodes[-1].outputs[0]
            value.type, value.shape = packed.type, ir.Shape([*rows, heads, size])
            if match.attrs["transposed"]:
                nodes.append(ctx.node("Transpose", [value], {"perm": SPLIT}, like=like))
            results.append(nodes[-1].outputs[0])
        return Replacement(nodes, results)


def _thirds(whole: ir.Value, size: int, ctx: GraphContext) -> dict[ir.Value, Part] | None:
    """The three parts of `whole` in order, when nothing else reads it."""
    found: dict[ir.Value, Part] = {}
    for user in ctx.users(whole):
        for value in user.outputs:
            part = part_of(value, ctx)
            if part is None or part.x is not whole or part.size != size or part.step != 1:
                return None
            found[value] = part
    ordered = sorted(found.items(), key=lambda item: item[1].start)
    if [part.start for _, part in ordered] != [0, size, 2 * size] or whole.is_graph_output():
        return None
    return dict(ordered)
