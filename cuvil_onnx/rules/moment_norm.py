"""Recognises layer normalization whose variance is the mean square minus the squared mean.

Before: m = mean(x); v = Max(0, mean(x * x) - m * m); (x - m) * (1 / Sqrt(v + epsilon) * scale) + bias over the last
        axis; means as ReduceMean or as ReduceSum and a factor, the reduced axis brought back by Reshape or Unsqueeze;
        Max, scale and bias optional: flax exported through jax2tf and tf2onnx.
After:  LayerNormalization from opset 17 on, else cuvil::LayerNorm.
Exactness: rounding; the variance is summed from the deviations, without the cancellation of the written form.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.pattern import operands
from cuvil_onnx.rewrite.rule import Exactness, Match, Phase, Refusal, Replacement, Rule
from cuvil_onnx.rules import _norm
from cuvil_onnx.rules._common import FLOATS, dims, near, scalar_factor, scalar_term, vector


@dataclass(frozen=True)
class _Mean:
    """`x` averaged over its last axis by `nodes`."""

    x: ir.Value
    nodes: tuple[ir.Node, ...]


class MomentNorm(Rule):
    """See the module's text."""

    name = "moment_norm"
    phase = Phase.STRUCTURAL
    exactness = Exactness.ROUNDING
    roots = (("", "Sqrt"),)

    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        shifted = ctx.producer(node.inputs[0])
        term = None if shifted is None else scalar_term(shifted, ctx)
        if shifted is None or term is None:
            return None
        variance, nodes = _unshaped(term[0], ctx)
        clamp = ctx.producer(variance, "Max")
        if clamp is not None:
            rest = [v for v in clamp.inputs if ctx.scalar(v) != 0]
            if len(clamp.inputs) != 2 or len(rest) != 1:
                return None
            variance, nodes = rest[0], [*nodes, clamp]
        difference = ctx.producer(variance, "Sub")
        if difference is None:
            return None
        square_of_mean = ctx.producer(difference.inputs[1])
        mean_value = None if square_of_mean is None else _norm.squared(square_of_mean, ctx)
        mean, mean_square = _mean(mean_value, ctx), _mean(difference.inputs[0], ctx)
        square = None if mean_square is None else ctx.producer(mean_square.x)
        if mean is None or mean_square is None or square is None or square_of_mean is None:
            return None
        x = mean.x
        if _norm.squared(square, ctx) is not x or mean_value is None:
            return None
        if ctx.dtype(x) not in FLOATS:
            return Refusal("the element type of the input is not known", x)
        if term[1] < 0:
            return Refusal(f"epsilon is {term[1]:g}", shifted)
        shape = dims(x, ctx)
        if shape is None or dims(shifted.outputs[0], ctx) != (*shape[:-1], 1) or None in shape:
            return Refusal("the reduced axis is not known to be brought back as the last one", shifted)
        nodes += [node, shifted, difference, square_of_mean, square, *mean.nodes, *mean_square.nodes]
        return self._follow(node, x, mean_value, term[1], nodes, ctx)

    def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
        return _norm.rewrite(match, ctx, centred=True)

    def _follow(
        self, root: ir.Node, x: ir.Value, mean: ir.Value, epsilon: float, nodes: list[ir.Node], ctx: GraphContext
    ) -> Match | Refusal | None:
        """From the deviation to the end: reciprocal, scale, product with x - mean, bias."""
        shape, rank = dims(x, ctx), ctx.rank(x)
        assert shape is not None
        user = ctx.single_user(root.outputs[0])
        if user is None or not _norm.inverts(user, root.outputs[0], ctx):
            return None
        nodes.append(user)
        value, scale, bias, centred = user.outputs[0], None, None, None
        for _ in range(2):
            product = ctx.single_user(value, "Mul")
            other = None if product is None else next((o for v, o in operands(product) if v is value), None)
            if product is None or other is None:
                break
            if scale is None and _is_parameter(other, shape[-1], rank, ctx):
                scale = other
            elif centred is None and (subtract := ctx.producer(other, "Sub")) and subtract.inputs[0] is x:
                centred = subtract
            else:
                break
            nodes.append(product)
            value = product.outputs[0]
        if centred is None:
            return Refusal("the deviation is not multiplied with x - mean(x)", user)
        restored, between = _unshaped(centred.inputs[1], ctx)
        if restored is not mean or dims(centred.inputs[1], ctx) != (*shape[:-1], 1):
            return Refusal("what is subtracted is not the mean of the last axis", centred)
        nodes += [centred, *between]
        add = ctx.single_user(value, "Add")
        if add is not None:
            bias = next((o for v, o in operands(add) if v is value and _is_parameter(o, shape[-1], rank, ctx)), None)
        if add is not None and bias is not None:
            nodes.append(add)
            value = add.outputs[0]
        if scale is None and not isinstance(shape[-1], int):
            return Refusal("there is no scale, and the size of the last axis is not known", x)
        values = {"x": x, "scale": scale, "bias": bias}
        return Match(root, tuple(dict.fromkeys(nodes)), (value,), values, {"epsilon": epsilon})


def _is_parameter(value: ir.Value, size: int | str | None, rank: int | None, ctx: GraphContext) -> bool:
    return ctx.is_constant(value) and vector(value, size, ctx, rank=rank)


def _unshaped(value: ir.Value | None, ctx: GraphContext) -> tuple[ir.Value | None, list[ir.Node]]:
    """Before the Reshape or Unsqueeze, if any, that brings a reduced axis back."""
    node = ctx.producer(value)
    if node is None or node.domain or node.op_type not in ("Reshape", "Unsqueeze"):
        return value, []
    return node.inputs[0], [node]


def _mean(value: ir.Value | None, ctx: GraphContext) -> _Mean | None:
    """Reads `value` as a mean over the last axis."""
    node = ctx.producer(value)
    factor = None if node is None else scalar_factor(node, ctx)
    reduce = node if factor is None else ctx.producer(factor[0], "ReduceSum")
    if reduce is None or reduce.domain or reduce.op_type != ("ReduceMean" if factor is None else "ReduceSum"):
        return None
    x = reduce.inputs[0]
    given = ctx.attr(reduce, "axes") or ctx.ints(reduce.inputs[1] if len(reduce.inputs) > 1 else None)
    shape = dims(x, ctx)
    if x is None or shape is None or given is None or list(given) not in ([-1], [len(shape) - 1]):
        return None
    if factor is None or node is None:
        return _Mean(x, (reduce,))
    size = shape[-1]
    return _Mean(x, (reduce, node)) if isinstance(size, int) and near(factor[1] * size, 1.0, 1e-6) else None
