"""Recognises multi-head attention written out.

Before: q, k, v [B, S, N * H], each Reshape [B, S, N, H] and Transpose [B, N, S, H] (k perhaps straight to
        [B, N, H, S]); MatMul(q, k'), a constant scale on q, k or the scores, an additive mask, Softmax, MatMul with v,
        Transpose [B, S, N, H], Reshape [B, S, N * H].
        q, k and v may also be parts of one tensor: Reshape [B, S, 3, N, H], Transpose [3, B, N, S, H], then Gather,
        Slice or Split.
After:  cuvil::Attention(q, k, v, mask), or packed (qkv, mask); heads and sizes are read from the shapes.
Exactness: rounding; the scale is applied at another place and the softmax is computed in pieces.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.pattern import operands
from cuvil_onnx.rewrite.rule import Exactness, Match, Phase, Refusal, Replacement, Rule
from cuvil_onnx.rules._common import TENSOR_CORE_TYPES, dims, fits, make
from cuvil_onnx.rules._heads import SPLIT, Branch, branch, scale_of


@dataclass
class _Scores:
    """The way from the product of q and k to the softmax."""

    product: ir.Node
    scale: float = 1.0
    mask: ir.Value | None = None
    nodes: list[ir.Node] = field(default_factory=list)


class Attention(Rule):
    """See the module's text."""

    name = "attention"
    phase = Phase.STRUCTURAL
    exactness = Exactness.ROUNDING
    roots = (("", "Softmax"),)

    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        weights, casts = _skip_casts_down(node.outputs[0], ctx)
        context = ctx.single_user(weights, "MatMul")
        if context is None or context.inputs[0] is not weights or ctx.rank(node.outputs[0]) != 4:
            return None
        scores = _scores(node, ctx)
        if not isinstance(scores, _Scores):
            return scores
        q = branch(scores.product.inputs[0], False, ctx)
        k = branch(scores.product.inputs[1], True, ctx)
        v = branch(context.inputs[1], False, ctx)
        for side, name in ((q, "queries"), (k, "keys"), (v, "values")):
            if not isinstance(side, Branch):
                return Refusal(f"the {name} are not a [B, S, N * H] tensor split into heads", side or scores.product)
        assert isinstance(q, Branch) and isinstance(k, Branch) and isinstance(v, Branch)
        problem = _check(node, q, k, v, scores, ctx)
        if problem is not None:
            return problem
        merged = _merge(context, ctx)
        if merged is None:
            return Refusal("the heads of the result are not merged into [B, S, N * H]", context)
        if ctx.dtype(merged[-1].outputs[0]) != ctx.dtype(q.source):
            return Refusal("the result has another element type than the queries", merged[-1])
        nodes = [node, context, scores.product, *scores.nodes, *casts, *q.nodes, *k.nodes, *v.nodes, *merged]
        packed = q.part is not None
        values = {"q": q.source, "mask": scores.mask}
        values |= {"k": None if packed else k.source, "v": None if packed else v.source}
        attrs: dict[str, Any] = {"num_heads": q.heads, "scale": scores.scale * q.scale * k.scale}
        attrs["layout"] = "packed" if packed else "separate"
        kept = tuple(dict.fromkeys(nodes))
        return Match(node, kept, outputs=merged[-1].outputs, values=values, attrs=attrs)

    def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
        values = match.values
        dtype = ctx.dtype(values["q"])
        assert dtype is not None
        attrs = {**match.attrs, "causal": 0}
        inputs = [values[name] for name in ("q", "k", "v", "mask")]
        node, function = make("Attention", inputs, attrs, ctx, dtype, match.outputs)
        return Replacement((node,), node.outputs, (function,))


def _scores(softmax: ir.Node, ctx: GraphContext) -> _Scores | Refusal | None:
    """Walks from the softmax back over mask, scale and casts to the product of q and k."""
    found: list[ir.Node] = []
    scale, mask = 1.0, None
    value = softmax.inputs[0]
    while True:
        node = ctx.producer(value)
        if node is None or node.domain != "":
            return None
        if node.op_type == "MatMul":
            return _Scores(node, scale, mask, found)
        scaled = scale_of(node, ctx)
        if scaled is not None:
            scale *= scaled[1]
            value = scaled[0]
        elif node.op_type == "Cast" and ctx.dtype(node.outputs[0]) == ir.DataType.FLOAT:
            value = node.inputs[0]
        elif node.op_type == "Add":
            sides = [(v, m) for v, m in operands(node) if _is_score(v, ctx)]
            if len(sides) != 1:
                return None
            if mask is not None:
                return Refusal("the scores have two masks", node)
            if scale != 1.0:
                return Refusal("the mask is added before the scale is applied", node)
            value, mask = sides[0]
        else:
            return None
        found.append(node)


def _is_score(value: ir.Value, ctx: GraphContext) -> bool:
    """Whether a product of 4-dimensional tensors is behind `value`, past scales, casts and masks."""
    pending: list[ir.Value | None] = [value]
    for _ in range(8):
        if not pending:
            return False
        node = ctx.producer(pending.pop())
        if node is None or node.domain != "":
            continue
        scaled = scale_of(node, ctx)
        if node.op_type == "MatMul" and ctx.rank(node.outputs[0]) == 4:
            return True
        if scaled is not None:
            pending.append(scaled[0])
        elif node.op_type in ("Cast", "Add"):
            pending.extend(node.inputs)
    return False


def _merge(context: ir.Node, ctx: GraphContext) -> list[ir.Node] | None:
    """The transpose and the reshape that merge the heads again."""
    transpose = ctx.single_user(context.outputs[0], "Transpose")
    reshape = None if transpose is None else ctx.single_user(transpose.outputs[0], "Reshape")
    if transpose is None or reshape is None or tuple(ctx.attr(transpose, "perm", ())) != SPLIT:
        return None
    split, whole = dims(transpose.outputs[0], ctx), dims(reshape.outputs[0], ctx)
    if split is None or whole is None or len(whole) != 3 or whole[:2] != split[:2] or None in whole[:2]:
        return None
    return [transpose, reshape]


def _check(softmax: ir.Node, q: Branch, k: Branch, v: Branch, scores: _Scores, ctx: GraphContext) -> Refusal | None:
    """The conditions under which the fused op computes the same."""
    if ctx.attr(softmax, "axis", -1 if ctx.opset() >= 13 else 1) not in (-1, 3):
        return Refusal("the softmax is not over the keys", softmax)
    dtype = ctx.dtype(q.source)
    if dtype not in TENSOR_CORE_TYPES:
        return Refusal("the element type is not float32, float16 or bfloat16", q.source)
    if any(ctx.dtype(b.source) != dtype for b in (k, v)):
        return Refusal("queries, keys and values have different element types", softmax)
    if not q.heads == k.heads == v.heads or not q.head_size == k.head_size == v.head_size:
        return Refusal("queries, keys and values are split into different heads (grouped or multi-query)", softmax)
    parts = (q.part, k.part, v.part)
    if parts != (None, None, None) and (parts != (0, 1, 2) or not q.source is k.source is v.source):
        return Refusal("queries, keys and values are not the three parts of one tensor in this order", softmax)
    if v.scale != 1.0:
        return Refusal("the values are scaled", softmax)
    left, keys, values = dims(q.source, ctx), dims(k.source, ctx), dims(v.source, ctx)
    assert left is not None and keys is not None and values is not None
    if left[0] != keys[0] or keys[:2] != values[:2]:
        return Refusal("batch or key sizes are not known to be equal", softmax)
    if scores.mask is not None:
        if ctx.dtype(scores.mask) not in (dtype, ir.DataType.FLOAT):
            return Refusal("the mask has another element type", scores.mask)
        if not fits(scores.mask, (left[0], q.heads, left[1], keys[1]), ctx):
            return Refusal("the mask is not known to fit [B, N, S, T]", scores.mask)
    return None


def _skip_casts_down(value: ir.Value, ctx: GraphContext) -> tuple[ir.Value, list[ir.Node]]:
    """Past the cast back to 16 bits after a float32 softmax."""
    cast = ctx.single_user(value, "Cast")
    return (value, []) if cast is None else (cast.outputs[0], [cast])
