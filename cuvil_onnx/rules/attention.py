"""Recognises multi-head attention written out.

Before: q, k, v [B, S, N * H], each Reshape [B, S, N, H] and Transpose [B, N, S, H] (k perhaps straight to
        [B, N, H, S]); MatMul(q, k'), a constant scale on q, k or the scores, an additive mask, Softmax, MatMul with v,
        Transpose [B, S, N, H], Reshape [B, S, N * H].
        q, k and v may also be parts of one tensor: Reshape [B, S, 3, N, H], Transpose [3, B, N, S, H], then Gather,
        Slice or Split; or Split of [B, S, 3 * N * H]. Heads that were computed on are taken as they are: queries
        merged, keys and values (a cache with what is new) in their own order. Several masks are added. A guard against
        NaN behind the softmax becomes masked_rows_zero, see _nan_guard. Merged heads may be used in another shape than
        [B, S, N * H].
After:  cuvil::Attention(q, k, v, mask), or packed (qkv, mask); heads and sizes are read from the shapes.
        Heads of keys and values that were repeated are taken once (kv_num_heads), see _repeat.
Exactness: rounding; the scale is applied at another place and the softmax is computed in pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.pattern import operands
from cuvil_onnx.rewrite.rule import Exactness, Match, Phase, Refusal, Replacement, Rule
from cuvil_onnx.rules import _nan_guard, _rows
from cuvil_onnx.rules._common import TENSOR_CORE_TYPES, dims, make
from cuvil_onnx.rules._heads import (
    Branch,
    branch,
    fits_scores,
    joined_source,
    merge,
    removable,
    scale_of,
    set_merged_shape,
    split_again,
    unmerged,
)


@dataclass
class _Scores:
    """The way from the product of q and k to the softmax."""

    product: ir.Node
    scale: float = 1.0
    masks: list[ir.Value] = field(default_factory=list)
    nodes: list[ir.Node] = field(default_factory=list)


class Attention(Rule):
    """See the module's text."""

    name = "attention"
    phase = Phase.STRUCTURAL
    exactness = Exactness.ROUNDING
    roots = (("", "Softmax"),)

    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        weights, between, guarded = _down(node.outputs[0], ctx)
        context = ctx.single_user(weights, "MatMul")
        if context is None or context.inputs[0] is not weights or ctx.rank(node.outputs[0]) != 4:
            return None
        scores = _scores(node, ctx)
        if not isinstance(scores, _Scores):
            return scores
        sources = ((scores.product.inputs[0], False), (scores.product.inputs[1], True), (context.inputs[1], False))
        read = [branch(value, transposed, ctx) for value, transposed in sources]
        parts = [side.part if isinstance(side, Branch) else None for side in read]
        sides: list[Branch] = []
        for side, (value, transposed), name in zip(read, sources, ("queries", "keys", "values"), strict=True):
            # A part of a packed tensor is of use only next to the other two.
            usable = isinstance(side, Branch) and (side.part is None or parts == [0, 1, 2])
            found = side if usable else unmerged(value, transposed, ctx)
            if not isinstance(found, Branch):
                culprit = side if isinstance(side, ir.Node) else scores.product
                return Refusal(f"the {name} are not a [B, S, N * H] tensor split into heads", culprit)
            sides.append(found)
        q, k, v = sides
        hides = guarded and any(_nan_guard.may_hide_rows(m, ctx) for m in scores.masks)
        problem = _check(node, sides, scores, ctx)
        if problem is None and hides and ctx.opset() < _nan_guard.LOWEST_OPSET:
            problem = Refusal(f"rows without keys need opset {_nan_guard.LOWEST_OPSET}", node)
        if problem is not None:
            return problem
        merged = merge(context, (q.batch, q.length, q.heads, q.head_size), ctx)
        if not merged:
            return Refusal("the heads of the result are not merged into [B, S, N * H]", context)
        if ctx.dtype(merged[-1].outputs[0]) != ctx.dtype(q.source):
            return Refusal("the result has another element type than the queries", merged[-1])
        core = [node, context, scores.product, *scores.nodes, *between, *merged]
        heads = [*q.nodes, *k.nodes, *v.nodes]
        joined = joined_source(sides, ctx)
        if joined is not None:
            q, heads = replace(q, source=joined[0], part=0), [*heads, *joined[1]]
        packed = q.part is not None
        values: dict[str, ir.Value | None] = {"q": q.source}
        values |= {"k": None if packed else k.source, "v": None if packed else v.source}
        node_attrs: dict[str, Any] = {"num_heads": q.heads, "scale": scores.scale * q.scale * k.scale, "causal": 0}
        node_attrs |= {"layout": "packed" if packed else "separate", "masked_rows_zero": int(hides)}
        node_attrs["kv_num_heads"] = k.heads
        perms = {"q": q.perm, "k": None if packed else k.perm, "v": None if packed else v.perm}
        attrs: dict[str, Any] = {"node": node_attrs, "perms": perms, "masks": scores.masks}
        attrs["heads"] = (q.heads, q.head_size) if merged[-1].op_type == "Transpose" else None
        return Match(node, removable(core, heads, ctx), outputs=merged[-1].outputs, values=values, attrs=attrs)

    def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
        values, like = dict(match.values), match.outputs[0]
        dtype = ctx.dtype(values["q"])
        assert dtype is not None
        nodes: list[ir.Node] = []
        for name, perm in match.attrs["perms"].items():
            source = values[name]
            if source is not None and perm == _rows.SWAP and _rows.can_swap(source, match.nodes, ctx):
                source, made = _rows.swap(source, ctx)
                nodes += made
                perm = (0, 1, 2, 3)
            if source is not None and perm == _rows.SWAP and name != "q":
                values[name] = source  # [B, G, T, H], such as a cache, is taken as it is
            elif source is not None and perm is not None:
                nodes += _merge_heads(source, perm, ctx)
                values[name] = nodes[-1].outputs[0]
        mask, sums = _sum(match.attrs["masks"], ctx)
        inputs = [values["q"], values["k"], values["v"], mask]
        node, function = make("Attention", inputs, match.attrs["node"], ctx, dtype, [like])
        set_merged_shape(node.outputs[0], like, match.attrs["heads"], ctx)
        end, outputs = split_again(node, like, match.attrs["heads"], ctx)
        return Replacement([*nodes, *sums, *end], outputs, (function,))


def _scores(softmax: ir.Node, ctx: GraphContext) -> _Scores | Refusal | None:
    """Walks from the softmax back over mask, scale and casts to the product of q and k."""
    found: list[ir.Node] = []
    scale = 1.0
    masks: list[ir.Value] = []
    value = softmax.inputs[0]
    while True:
        node = ctx.producer(value)
        if node is None or node.domain != "":
            return None
        if node.op_type == "MatMul":
            return _Scores(node, scale, masks, found)
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
            if scale != 1.0:
                return Refusal("the mask is added before the scale is applied", node)
            value = sides[0][0]
            masks.insert(0, sides[0][1])
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


def _check(softmax: ir.Node, sides: Sequence[Branch], scores: _Scores, ctx: GraphContext) -> Refusal | None:
    """The conditions under which the fused op computes the same."""
    if ctx.attr(softmax, "axis", -1 if ctx.opset() >= 13 else 1) not in (-1, 3):
        return Refusal("the softmax is not over the keys", softmax)
    q, k, v = sides
    dtype = ctx.dtype(q.source)
    if dtype not in TENSOR_CORE_TYPES:
        return Refusal("the element type is not float32, float16 or bfloat16", q.source)
    if any(ctx.dtype(b.source) != dtype for b in (k, v)):
        return Refusal("queries, keys and values have different element types", softmax)
    # A single head of keys may also be repeated by MatMul.
    whole = all(b.heads == 1 or b.heads * b.repeats == q.heads for b in (k, v)) and q.repeats == 1
    if not whole or k.heads != v.heads or not q.head_size == k.head_size == v.head_size:
        return Refusal("queries, keys and values are split into different heads that do not fit together", softmax)
    if q.part is not None and not q.source is k.source is v.source:
        return Refusal("queries, keys and values are not the three parts of one tensor", softmax)
    if v.scale != 1.0:
        return Refusal("the values are scaled", softmax)
    # As many keys as values there are in every run that ends without an error: they meet in the second product.
    if q.batch != k.batch or k.batch != v.batch:
        return Refusal("batch sizes are not known to be equal", softmax)
    for mask in scores.masks:
        if ctx.dtype(mask) not in (dtype, ir.DataType.FLOAT) or ctx.dtype(mask) != ctx.dtype(scores.masks[0]):
            return Refusal("the mask has another element type", mask)
        if not fits_scores(mask, (q.batch, q.heads, q.length), ctx):
            return Refusal("the mask is not known to fit [B, N, S, T]", mask)
    return None


def _sum(masks: Sequence[ir.Value], ctx: GraphContext) -> tuple[ir.Value | None, list[ir.Node]]:
    """All masks in one, and the nodes for that; each has ones or the sizes of [B, N, S, T]."""
    nodes: list[ir.Node] = []
    total = masks[0] if masks else None
    for mask in masks[1:]:
        assert total is not None
        left, right = dims(total, ctx) or (), dims(mask, ctx) or ()
        rank = max(len(left), len(right))
        pairs = zip((1,) * (rank - len(left)) + left, (1,) * (rank - len(right)) + right, strict=True)
        nodes.append(ctx.node("Add", [total, mask]))
        total = nodes[-1].outputs[0]
        total.type = mask.type
        total.shape = ir.Shape([b if a == 1 else a if b in (1, a) else None for a, b in pairs])
    return total, nodes


def _down(value: ir.Value, ctx: GraphContext) -> tuple[ir.Value, list[ir.Node], bool]:
    """From the softmax to the weights: past a guard against NaN and the cast back to 16 bits after a float32 softmax.

    Returns:
        The weights, the nodes on the way, and whether there is a guard.
    """
    nodes: list[ir.Node] = []
    guarded = False
    for _ in range(2):
        cast = ctx.single_user(value, "Cast")
        if cast is not None and not any(n.op_type == "Cast" for n in nodes):
            value = cast.outputs[0]
            nodes.append(cast)
        guard = None if guarded else _nan_guard.find(value, ctx)
        if guard is not None:
            value, guarded = guard[0], True
            nodes += guard[1]
    return value, nodes, guarded


def _merge_heads(source: ir.Value, perm: tuple[int, ...], ctx: GraphContext) -> list[ir.Node]:
    """The nodes that make a [B, S, N * H] tensor of heads."""
    nodes: list[ir.Node] = []
    shape = dims(source, ctx)
    assert shape is not None and source.type is not None
    heads, size = shape[perm[2]], shape[perm[3]]
    assert isinstance(heads, int) and isinstance(size, int)
    width = heads * size
    value = source
    if perm != (0, 1, 2, 3):
        nodes.append(ctx.node("Transpose", [value], {"perm": perm}))
        value = nodes[0].outputs[0]
        value.type, value.shape = source.type, ir.Shape([shape[i] for i in perm])
    target = ctx.initializer(np.array([0, 0, width], np.int64), "merged")
    nodes.append(ctx.node("Reshape", [value, target]))
    merged = nodes[-1].outputs[0]
    merged.type, merged.shape = source.type, ir.Shape([shape[perm[0]], shape[perm[1]], width])
    return nodes
