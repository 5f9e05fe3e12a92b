"""Computes queries, keys and values in one product.

Before: cuvil::Attention(x Wq + bq, x Wk + bk, x Wv + bv), constant weights, biases optional; or parts, in order, of one
        tensor. Queries and keys may be rotated by the same cuvil::RotaryEmbedding on the way.
After:  cuvil::Attention(x [Wq Wk Wv] + [bq bk bv]), layout "packed", queries and keys rotated in one call.
Exactness: rounding; the larger product may sum in another order.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.rule import Exactness, Match, Phase, Refusal, Replacement, Rule
from cuvil_onnx.rules._common import dims, make, unused
from cuvil_onnx.rules._parts import contiguous
from cuvil_onnx.rules._projection import Projection, join, joinable, projection

_SAME = ("rotary_dim", "interleaved", "per_pair")
_KEPT = ("num_heads", "kv_num_heads", "scale", "causal", "masked_rows_zero")


class QkvPacking(Rule):
    """See the module's text."""

    name = "qkv_packing"
    phase = Phase.STRUCTURAL
    exactness = Exactness.ROUNDING
    roots = (("cuvil", "Attention"),)

    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        if ctx.attr(node, "layout") != "separate":
            return None
        rotations = [ctx.producer(v, "RotaryEmbedding", "cuvil") for v in node.inputs[:3]]
        rotary = [r for r in rotations if r is not None]
        sources = [v if r is None else r.inputs[0] for v, r in zip(node.inputs[:3], rotations, strict=True)]
        parts = [p for p in (projection(v, ctx) for v in sources) if p is not None]
        heads = int(ctx.attr(node, "num_heads"))
        groups = int(ctx.attr(node, "kv_num_heads", 0)) or heads
        widths = [(dims(v, ctx) or (None,))[-1] for v in sources]
        size = widths[0] // heads if isinstance(widths[0], int) else 0
        cut = contiguous(sources, ctx)
        if cut is None and len(parts) != 3:
            return None
        if widths != [heads * size, groups * size, groups * size]:
            return Refusal("the heads have different sizes", node)
        if rotary and not _alike(rotations, ctx):
            return Refusal("queries and keys are not rotated alike", node)
        nodes = [node, *rotary]
        removed = [r.outputs[0] for r in rotary]
        values = {"whole": None if cut is None else cut[0]}
        if cut is None:
            if any(p.x is not parts[0].x for p in parts):
                return Refusal("queries, keys and values are projected from different tensors", node)
            if not joinable(parts, ctx):
                return Refusal("queries, keys and values have weights of different types or groups", node)
            nodes += [n for p in parts for n in p.nodes]
            removed += [n.outputs[0] for p in parts for n in p.nodes]
        left: list[ir.Node] = []
        for value in removed:
            readers = unused(value, nodes, ctx)
            if readers is None:
                return Refusal("a projection is read elsewhere too", value)
            left += readers
        nodes += dict.fromkeys(left)
        attrs = {"parts": parts, "rotary": rotary, "heads": (heads, groups)}
        return Match(node, nodes, outputs=node.outputs, values=values, attrs=attrs)

    def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
        node, rotary = match.root, match.attrs["rotary"]
        parts: Sequence[Projection] = match.attrs["parts"]
        whole = match.values["whole"]
        nodes = [] if whole is not None else join(parts, "qkv", ctx)
        packed = whole if whole is not None else nodes[-1].outputs[0]
        dtype = ctx.dtype(packed)
        assert dtype is not None
        functions = []
        if rotary:
            heads, groups = match.attrs["heads"]
            given = {name: ctx.attr(rotary[0], name) for name in _SAME}
            given |= {"num_heads": heads + 2 * groups, "rotated_heads": heads + groups}
            inputs = [packed, *rotary[0].inputs[1:3]]
            turned, function = make("RotaryEmbedding", inputs, given, ctx, dtype, [packed])
            nodes.append(turned)
            functions.append(function)
            packed = turned.outputs[0]
        attrs = {name: ctx.attr(node, name) for name in _KEPT} | {"layout": "packed"}
        inputs = [packed, None, None, *node.inputs[3:]]  # with a past, which the new keys and values go behind
        fused, function = make("Attention", inputs, attrs, ctx, dtype, match.outputs)
        return Replacement((*nodes, fused), fused.outputs, (*functions, function))


def _alike(rotations: Sequence[ir.Node | None], ctx: GraphContext) -> bool:
    """Whether queries and keys, and not the values, are rotated in the same way, all of their heads."""
    q, k, v = rotations
    if q is None or k is None or v is not None:
        return False
    same = all(ctx.attr(q, name) == ctx.attr(k, name) for name in _SAME)
    whole = all(ctx.attr(r, "rotated_heads", 0) in (0, ctx.attr(r, "num_heads")) for r in (q, k))
    return same and whole and all(a is b for a, b in zip(q.inputs[1:3], k.inputs[1:3], strict=True))
