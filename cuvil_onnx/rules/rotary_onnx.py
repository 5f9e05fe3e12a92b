"""Lets ONNX's rotary embedding read merged heads.

Before: RotaryEmbedding (opset 23) of heads [B, N, S, H], transposed from [B, S, N, H], or of merged ones [B, S, N * H],
        perhaps of the first R elements of each head only, which are cut out before and joined again. With position_ids
        the cosines and sines are gathered from caches [P, R / 2].
After:  cuvil::RotaryEmbedding, which attention reads as it is. torch's exporter gives cosines of a batch of 1, which
        ONNX Runtime's own kernel refuses for larger batches.
Exactness: rounding; for 16-bit types products are not rounded before they are added.
"""

from __future__ import annotations

import onnx_ir as ir

from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.rule import Exactness, Match, Phase, Refusal, Replacement, Rule
from cuvil_onnx.rules._common import FLOATS, dims
from cuvil_onnx.rules._heads import SPLIT, removable
from cuvil_onnx.rules._rotary import Turn
from cuvil_onnx.rules._rotated_heads import Heads, merged, rotated, whole_heads


class RotaryOnnx(Rule):
    """See the module's text."""

    name = "rotary_onnx"
    phase = Phase.STRUCTURAL
    exactness = Exactness.ROUNDING
    roots = (("", "RotaryEmbedding"),)

    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        x, cos, sin = node.inputs[:3]
        shape, rows = dims(x, ctx), dims(cos, ctx)
        positions = node.inputs[3] if len(node.inputs) > 3 else None
        if x is None or cos is None or sin is None or shape is None or rows is None or ctx.dtype(x) not in FLOATS:
            return None
        dim = ctx.attr(node, "rotary_embedding_dim", 0) or (shape[-1] if len(shape) == 4 else rows[-1])
        if not isinstance(dim, int):
            return Refusal("the number of rotated elements is not known", x)
        dim = dim if len(shape) == 4 or ctx.attr(node, "rotary_embedding_dim", 0) else 2 * dim
        if rows[-1] != dim // 2 or dims(sin, ctx) != rows or len(rows) != (3 if positions is None else 2):
            return Refusal("cosines and sines do not have one element for each pair", cos)
        turn = Turn(x, cos, sin, bool(ctx.attr(node, "interleaved", 0)), True, node.outputs[0], [node])
        whole, core, extra = whole_heads(turn, ctx)
        heads = _heads(whole, int(ctx.attr(node, "num_heads", 0)), ctx)
        if isinstance(heads, Refusal):
            return heads
        if positions is None:
            source = dims(heads.source, ctx) or (None, None)
            if rows[0] not in (1, source[0]) or rows[1] not in (1, source[1]):
                return Refusal("the sizes of the cosines are not known to be those of the heads", cos)
        values = {"cos": cos, "sin": sin, "positions": positions}
        ints = {"rotary_dim": dim, "interleaved": int(turn.interleaved), "per_pair": 1}
        nodes = removable(core, [*extra, *heads.nodes], ctx)
        return Match(node, nodes, core[-1].outputs, values, {"ints": ints, "heads": heads})

    def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
        cos, sin, positions = (match.values[name] for name in ("cos", "sin", "positions"))
        assert cos is not None and sin is not None
        before: list[ir.Node] = []
        if positions is not None:
            shape, width = dims(positions, ctx), dims(cos, ctx)
            for value in (cos, sin):
                before.append(ctx.node("Gather", [value, positions], {"axis": 0}))
                rows = before[-1].outputs[0]
                rows.type = value.type
                if shape is not None and width is not None:
                    rows.shape = ir.Shape([*shape, width[-1]])
            cos, sin = (n.outputs[0] for n in before)
        return rotated(match.attrs["heads"], cos, sin, match.attrs["ints"], before, match.outputs[0], ctx)


def _heads(value: ir.Value, count: int, ctx: GraphContext) -> Heads | Refusal:
    """Heads as ONNX's operator takes them: [B, N, S, H], or merged with a number given."""
    shape = dims(value, ctx)
    assert shape is not None
    if None in shape:
        return Refusal("the shape of the heads is not known", value)
    if len(shape) == 3:
        width = shape[2]
        if not isinstance(width, int) or count < 1 or width % count:
            return Refusal("the heads do not divide the width", value)
        return Heads(value, value, 0, count, width // count)
    transpose = ctx.producer(value, "Transpose")
    source = None if transpose is None else transpose.inputs[0]
    heads, size = shape[1], shape[3]
    if transpose is None or source is None or tuple(ctx.attr(transpose, "perm", ())) != SPLIT:
        return Refusal("the heads are not transposed from [B, S, N, H]", value)
    if not isinstance(heads, int) or not isinstance(size, int):
        return Refusal("the number of heads is not known", value)
    merge, nodes = merged(source, ctx)
    return Heads(value, merge, 1, heads, size, [transpose, *nodes])
