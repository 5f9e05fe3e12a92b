"""Lets attention append keys and values to the cache itself.

Before: K = Concat(past_key [B, G, P, H], new keys [B, G, S, H]) over tokens, V likewise, and cuvil::Attention that
        reads both; K and V may be graph outputs. The new ones mostly are [B, S, G * H], split and transposed.
After:  cuvil::Attention(q, new keys, new values, mask, past_key, past_value) -> Y, K, V. What was split into heads and
        transposed for the cache is read as it was; queries, keys and values can be packed again, see qkv_packing.
Exactness: exact; the same numbers go the same way.
"""

from __future__ import annotations

import onnx_ir as ir

from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.rule import Exactness, Match, Phase, Refusal, Replacement, Rule
from cuvil_onnx.rules._common import dims, make
from cuvil_onnx.rules._heads import Branch, branch, removable

_KEPT = ("num_heads", "kv_num_heads", "scale", "causal", "masked_rows_zero", "layout")


class AttentionCache(Rule):
    """See the module's text."""

    name = "attention_cache"
    phase = Phase.STRUCTURAL
    exactness = Exactness.EXACT
    roots = (("cuvil", "Attention"),)

    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        if ctx.attr(node, "layout") != "separate" or len(node.inputs) > 4:
            return None
        joins = [_join(v, ctx) for v in node.inputs[1:3]]
        if joins == [None, None]:
            return None
        keys, values = joins
        if keys is None or values is None:
            return Refusal("only the keys or only the values come from a cache", node)
        if ctx.attr(node, "causal", 0):
            return Refusal("causal attention behind a cache counts positions otherwise", node)
        heads = int(ctx.attr(node, "kv_num_heads", 0)) or int(ctx.attr(node, "num_heads"))
        sides = [branch(join.inputs[1], False, ctx) for join in (keys, values)]
        found: dict[str, ir.Value | None] = {}
        split: list[ir.Node] = []
        for name, join, side in (("k", keys, sides[0]), ("v", values, sides[1])):
            past, new = join.inputs
            shape = dims(past, ctx)
            if shape is None or shape[1] != heads or not isinstance(shape[3], int):
                return Refusal("the heads of the cache are not known", join)
            plain = isinstance(side, Branch) and side.part is None and side.scale == 1.0 and side.repeats == 1
            if isinstance(side, Branch) and plain and (side.heads, side.head_size) == (heads, shape[3]):
                found[name] = side.source
                split += side.nodes
            elif (dims(new, ctx) or (None,) * 4)[1::2] == (heads, shape[3]):
                found[name] = new
            else:
                return Refusal("the new heads are not known to be those of the cache", join)
            found[f"past_{name}"] = past
        nodes = removable([node, keys, values], split, ctx)
        outputs = (node.outputs[0], keys.outputs[0], values.outputs[0])
        return Match(node, nodes, outputs, found)

    def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
        node, given = match.root, match.values
        dtype = ctx.dtype(node.inputs[0])
        assert dtype is not None
        mask = node.inputs[3] if len(node.inputs) > 3 else None
        inputs = [node.inputs[0], given["k"], given["v"], mask, given["past_k"], given["past_v"]]
        attrs = {name: ctx.attr(node, name) for name in _KEPT}
        fused, function = make("Attention", inputs, attrs, ctx, dtype, match.outputs)
        return Replacement((fused,), fused.outputs, (function,))


def _join(value: ir.Value | None, ctx: GraphContext) -> ir.Node | None:
    """The node that puts new rows [B, G, S, H] behind those of a cache."""
    node = ctx.producer(value, "Concat")
    if node is None or len(node.inputs) != 2 or ctx.rank(value) != 4:
        return None
    return node if ctx.attr(node, "axis") in (2, -2) else None
