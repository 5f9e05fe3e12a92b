"""Lets ONNX Attention read and write merged heads, so that nothing is transposed.

Before: q, k, v [B, S, N * H], each Reshape [B, S, N, H] and Transpose [B, N, S, H]; Attention (opset 23); Transpose
        [B, S, N, H], Reshape [B, S, N * H]: what torch's dynamo exporter writes from opset 23 on.
After:  cuvil::Attention(q, k, v, mask), whose projections can be packed; ONNX's operator gives 0 to a query that may
        see no key: masked_rows_zero. Heads of keys and values that were repeated are taken once. What cuvil::Attention
        cannot say (softcap, another softmax precision) stays ONNX's: Attention(q, k, v, mask) with q_num_heads and
        kv_num_heads.
Exactness: rounding; the same products, in a kernel for another layout.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from cuvil_onnx.rewrite.graph import Dim, GraphContext
from cuvil_onnx.rewrite.rule import Exactness, Match, Phase, Refusal, Replacement, Rule
from cuvil_onnx.rules._common import TENSOR_CORE_TYPES, fits, make
from cuvil_onnx.rules._heads import (
    SPLIT,
    Branch,
    branch,
    fits_scores,
    merge,
    removable,
    set_merged_shape,
    split_again,
    unmerged,
)


class AttentionLayout(Rule):
    """See the module's text."""

    name = "attention_layout"
    phase = Phase.STRUCTURAL
    exactness = Exactness.ROUNDING
    roots = (("", "Attention"),)

    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        if len(node.inputs) < 3 or any(ctx.rank(v) != 4 for v in node.inputs[:3]):
            return None
        sides: list[Branch] = []
        for value, name in zip(node.inputs[:3], ("queries", "keys", "values"), strict=True):
            side = branch(value, False, ctx)
            if (not isinstance(side, Branch) or side.part is not None) and sides:
                side = unmerged(value, False, ctx)  # a cache with what is new: [B, G, T, H]
            if not isinstance(side, Branch) or side.part is not None or side.perm not in (None, SPLIT):
                return Refusal(f"the {name} are not a [B, S, N * H] tensor split into heads", value)
            sides.append(side)
        q, k, v = sides
        if any(i is not None for i in node.inputs[4:]) or any(
            ctx.use_count(o) or o.is_graph_output() for o in node.outputs[1:]
        ):
            return Refusal("there is a cache, or the scores are wanted", node)
        if v.scale != 1.0:
            return Refusal("the values are scaled", node)
        # Written out or not, each head of keys serves as many of queries: a repetition can be left to the operator.
        if k.heads != v.heads or k.repeats != v.repeats or q.repeats != 1 or q.heads % (k.heads * k.repeats):
            return Refusal(f"{q.heads} heads of queries, {k.heads} of keys and {v.heads} of values", node)
        sizes = (q.batch, q.heads, q.length, k.length)
        plain = v.head_size == q.head_size == k.head_size and self._plain(node, q.source, sizes, ctx)
        if not plain and any(side.perm is not None for side in sides):
            return Refusal("keys or values are not a [B, S, N * H] tensor split into heads", node)
        merged = merge(node, (q.batch, q.length, q.heads, v.head_size), ctx)
        if not merged:
            return Refusal("the heads of the result are not merged into [B, S, N * H]", node)
        values = {"q": q.source, "k": k.source, "v": v.source}
        attrs: dict[str, Any] = {"heads": q.heads, "kv_heads": k.heads, "split": None}
        # Without a scale of its own the operator takes the root of the head size.
        attrs["scale"] = float(ctx.attr(node, "scale", q.head_size**-0.5)) * q.scale * k.scale
        if merged[-1].op_type == "Transpose":
            attrs["split"] = (q.heads, v.head_size)
        attrs["plain"] = plain
        nodes = removable([node, *merged], [*q.nodes, *k.nodes, *v.nodes], ctx)
        return Match(node, nodes, merged[-1].outputs, values, attrs)

    def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
        node, attrs = match.root, match.attrs
        inputs = [match.values[name] for name in "qkv"]
        like, functions = match.outputs[0], []
        if attrs["plain"]:
            dtype = ctx.dtype(inputs[0])
            assert dtype is not None
            given = {"num_heads": attrs["heads"], "scale": attrs["scale"], "layout": "separate"}
            given |= {"causal": int(ctx.attr(node, "is_causal", 0)), "kv_num_heads": attrs["kv_heads"]}
            mask = node.inputs[3] if len(node.inputs) > 3 else None
            given["masked_rows_zero"] = int(mask is not None)
            new, function = make("Attention", [*inputs, mask], given, ctx, dtype, [like])
            functions.append(function)
        else:
            kept = {name: a.value for name, a in node.attributes.items()} | {"scale": attrs["scale"]}
            kept |= {"q_num_heads": attrs["heads"], "kv_num_heads": attrs["kv_heads"]}
            new = ctx.node("Attention", [*inputs, *node.inputs[3:4]], kept, like=like)
        set_merged_shape(new.outputs[0], like, attrs["split"], ctx)
        return Replacement(*split_again(new, like, attrs["split"], ctx), functions)

    def _plain(self, node: ir.Node, q: ir.Value, sizes: tuple[Dim, ...], ctx: GraphContext) -> bool:
        """Whether cuvil::Attention says the same: no softcap, float32 softmax, a mask of [B, N, S, T]."""
        dtype = ctx.dtype(q)
        mask = node.inputs[3] if len(node.inputs) > 3 else None
        if mask is not None:
            # Since opset 24 a mask may end before the last key, which hides the others.
            exact = ctx.opset() >= 24
            known = ctx.rank(mask) != 0 and (fits(mask, sizes, ctx) if exact else fits_scores(mask, sizes[:3], ctx))
            if not known or ctx.dtype(mask) not in (dtype, ir.DataType.FLOAT, ir.DataType.BOOL):
                return False
        softcap, precision = ctx.attr(node, "softcap", 0.0), ctx.attr(node, "softmax_precision", 1)
        return not softcap and precision == 1 and dtype in TENSOR_CORE_TYPES
