"""BatchNormalization in inference mode disappears into the layer before it, or becomes Mul and Add."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from cuvil_onnx.passes.simplify import _channel_affine as affine
from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.rule import Exactness, Match, Phase, Refusal, Replacement, Rule

MAX_SHARED_BYTES = 1 << 14
"""Larger folded weights are not kept for the next layer that has the same constants: they might be the last to go."""


class BatchNorm(Rule):
    """Rounding: the weights absorb scale / sqrt(var + epsilon), rounded once.

    Before: BatchNormalization(Conv | ConvTranspose | Gemm (x, W, B), scale, bias, mean, var), all constant.
    After:  Conv | ConvTranspose | Gemm (x, W', B').

    Before: any other BatchNormalization with constant parameters and a known rank.
    After:  Add(Mul(x, k), c) with k, c of shape [C, 1, ...].
    """

    name = "batch_norm"
    phase = Phase.CLEANUP
    exactness = Exactness.ROUNDING
    roots = (("", "BatchNormalization"),)

    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        x = node.inputs[0]
        if x is None or ctx.attr(node, "training_mode", 0) or not ctx.attr(node, "spatial", 1):
            return Refusal("training mode, or statistics per position", node)
        if any(ctx.use_count(v) or v.is_graph_output() for v in node.outputs[1:]):
            return Refusal("the running statistics are used", node)
        by = _scale_and_shift(node, ctx)
        if isinstance(by, Refusal):
            return by
        layer = ctx.producer(x)
        if layer is not None and layer.op_type in affine.LINEAR_OPS and ctx.single_user(x) is node:
            folded = _absorbed(layer, by, ctx)
            if isinstance(folded, affine.Folded):
                return Match(node, (node, layer), node.outputs[:1], {"x": x}, {"layer": layer, "new": folded})
        if ctx.rank(x) is None:
            return Refusal("the rank of the input is unknown", x)
        return Match(node, (node,), node.outputs[:1], {"x": x}, {"k": by.k, "c": by.c})

    def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
        output, attrs = match.root.outputs[0], match.attrs
        if "layer" in attrs:
            layer = affine.build(attrs["layer"], attrs["new"], ctx, output)
            return Replacement((layer,), layer.outputs)
        x = match.values["x"]
        rank, dtype = ctx.rank(x), ctx.dtype(x)
        if rank is None or dtype is None:
            return Refusal("rank or element type is unknown", x)
        shape = (-1, *[1] * (rank - 2))
        k = attrs["k"].astype(dtype.numpy()).reshape(shape)
        c = attrs["c"].astype(dtype.numpy()).reshape(shape)
        if not (np.isfinite(k).all() and np.isfinite(c).all()):
            return Refusal("scale or shift overflows the element type", match.root)
        hint = match.root.name or "bn"
        mul = ctx.node("Mul", [x, ctx.initializer(k, f"{hint}_scale")], like=output)
        add = ctx.node("Add", [mul.outputs[0], ctx.initializer(c, f"{hint}_shift")], like=output)
        return Replacement((mul, add), add.outputs)


@dataclasses.dataclass(frozen=True, eq=False)
class _Affine:
    """k * x + c, with one k and c per channel."""

    k: npt.NDArray[np.float64]
    c: npt.NDArray[np.float64]


def _scale_and_shift(node: ir.Node, ctx: GraphContext) -> _Affine | Refusal:
    """What the normalization does; one object for all that have the same constants."""
    epsilon = ctx.attr(node, "epsilon", 1e-5)
    key = ("batch_norm", epsilon, *map(ctx.tensor, node.inputs[1:5]))
    known: _Affine | None = ctx.memo.get(key)
    if known is not None:
        return known
    parameters = [ctx.constant(v, max_elements=None) for v in node.inputs[1:5]]
    if any(p is None for p in parameters):
        return Refusal("scale, bias, mean or variance is not constant", node)
    scale, bias, mean, variance = (p.astype(np.float64).reshape(-1) for p in parameters if p is not None)
    with np.errstate(all="ignore"):
        k = scale / np.sqrt(variance + epsilon)
        c = bias - mean * k
    if not (np.isfinite(k).all() and np.isfinite(c).all()):
        return Refusal("scale / sqrt(variance + epsilon) is not finite", node)
    made = ctx.memo[key] = _Affine(k, c)
    return made


def _absorbed(layer: ir.Node, by: _Affine, ctx: GraphContext) -> affine.Folded | Refusal | None:
    """The layer's constants with ``by`` in them; worked out and stored once for layers that share them all."""
    read = [ctx.attr(layer, name) for name in ("group", "transB", "beta")]
    key = ("batch_norm", by, layer.op_type, *map(ctx.tensor, layer.inputs[1:]), *read)
    known: affine.Folded | None = ctx.memo.get(key)
    if known is not None:
        return known
    source = affine.linear(layer, ctx)
    if not isinstance(source, affine.Linear):
        return source
    folded = affine.fold(source, by.k, by.c, ctx)
    if isinstance(folded, affine.Folded) and folded.weight.nbytes <= MAX_SHARED_BYTES:
        ctx.memo[key] = folded
    return folded
