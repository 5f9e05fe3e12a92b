"""A multiplication or addition of one constant per channel behind a convolution disappears into its weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from cuvil_onnx.passes.simplify import _channel_affine as affine
from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.pattern import operands
from cuvil_onnx.rewrite.rule import Exactness, Match, Phase, Refusal, Replacement, Rule


class ConvAffine(Rule):
    """Rounding.

    Before: Mul | Div | Add | Sub (Conv | ConvTranspose (x, W, B?), constant of shape [C, 1, ...] or one number).
    After:  Conv | ConvTranspose (x, W', B').

    Refused when the convolution has another reader, the constant enlarges the result, or a folded constant would not
    be finite.
    """

    name = "conv_affine"
    phase = Phase.CLEANUP
    exactness = Exactness.ROUNDING
    roots = tuple(("", op) for op in ("Mul", "Div", "Add", "Sub"))

    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        for position, (x, const) in enumerate(operands(node)):
            layer = ctx.producer(x)
            if layer is None or layer.domain or layer.op_type not in ("Conv", "ConvTranspose"):
                continue
            if not ctx.is_constant(const) or (position == 1 and node.op_type in ("Div", "Sub")):
                continue
            if ctx.single_user(x) is not node:
                return Refusal("the convolution has another reader or is a graph output", x)
            source = affine.linear(layer, ctx)
            if not isinstance(source, affine.Linear):
                return source
            number = _per_channel(ctx.constant(const), source)
            if number is None:
                return Refusal("the constant is not one number per channel", const)
            folded = _fold(node.op_type, source, number, ctx)
            if isinstance(folded, Refusal):
                return folded
            return Match(node, (node, layer), attrs={"layer": layer, "new": folded})
        return None

    def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
        layer = affine.build(match.attrs["layer"], match.attrs["new"], ctx, match.root.outputs[0])
        return Replacement((layer,), layer.outputs)


def _per_channel(const: npt.NDArray[Any] | None, source: affine.Linear) -> npt.NDArray[np.float64] | None:
    """The constant as [channels]; None when it varies along another axis or enlarges the result."""
    if const is None:
        return None
    rank = source.weight.ndim
    if const.ndim > rank:
        return None
    shape = (1,) * (rank - const.ndim) + const.shape
    if any(d != 1 for i, d in enumerate(shape) if i != 1) or shape[1] not in (1, source.channels):
        return None
    return np.broadcast_to(const.reshape(-1).astype(np.float64), (source.channels,))


def _fold(
    op_type: str, source: affine.Linear, number: npt.NDArray[np.float64], ctx: GraphContext
) -> affine.Folded | Refusal:
    one, zero = np.ones_like(number), np.zeros_like(number)
    if op_type == "Add":
        return affine.fold(source, one, number, ctx)
    if op_type == "Sub":
        return affine.fold(source, one, -number, ctx)
    with np.errstate(divide="ignore"):
        return affine.fold(source, number if op_type == "Mul" else 1.0 / number, zero, ctx)
