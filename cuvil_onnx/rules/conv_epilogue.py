"""Takes bias, residual and activation into the convolution before them.

Before: Conv (or cuvil::FusedConv without activation), + bias [1, C, 1, 1], + residual of the result's shape, activation
        (one operator, or a written-out Swish, HardSwish or Mish).
After:  cuvil::FusedConv(X, W, B, Z).
Exactness: rounding; 16-bit results are rounded once instead of after every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.rule import Exactness, Match, Phase, Refusal, Replacement, Rule
from cuvil_onnx.rules._common import TENSOR_CORE_TYPES, dims, make, vector
from cuvil_onnx.rules._epilogue import follow, merged_bias


class ConvEpilogue(Rule):
    """See the module's text."""

    name = "conv_epilogue"
    phase = Phase.EPILOGUE
    exactness = Exactness.ROUNDING
    roots = (("", "Conv"), ("cuvil", "FusedConv"))

    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        if node.domain == "cuvil" and ctx.attr(node, "activation"):
            return None
        result = node.outputs[0]
        weight = dims(node.inputs[1], ctx)
        if ctx.dtype(result) not in TENSOR_CORE_TYPES or weight is None or not isinstance(weight[0], int):
            return None
        channels, rank = weight[0], len(weight)
        axis = -1 if ctx.attr(node, "layout") == "NHWC" else 1 - rank

        def is_bias(value: ir.Value) -> bool:
            return ctx.dtype(value) == ctx.dtype(result) and vector(value, channels, ctx, axis=axis, rank=rank)

        bias, residual = (node.inputs[i] if i < len(node.inputs) else None for i in (2, 3))
        epilogue = follow(result, is_bias, ctx, bias, residual)
        if not epilogue.nodes:
            return epilogue.nearly
        geometry = resolve(node, ctx)
        if isinstance(geometry, Refusal):
            return geometry
        attrs = {**geometry, "activation": epilogue.activation, "activation_params": epilogue.params}
        values = {"residual": epilogue.residual}
        nodes = (node, *epilogue.nodes)
        return Match(node, nodes, (epilogue.output,), values, {"node": attrs, "biases": epilogue.biases})

    def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
        x, w = match.root.inputs[:2]
        dtype = ctx.dtype(match.root.outputs[0])
        assert dtype is not None
        bias = merged_bias(match.attrs["biases"], ctx, "conv_bias")
        inputs = [x, w, bias, match.values["residual"]]
        node, function = make("FusedConv", inputs, match.attrs["node"], ctx, dtype, match.outputs)
        return Replacement((node,), node.outputs, (function,))


def resolve(node: ir.Node, ctx: GraphContext) -> dict[str, Any] | Refusal:
    """The attributes of FusedConv that say what a Conv's attributes and weight say, with `auto_pad` worked out."""
    weight = dims(node.inputs[1], ctx)
    assert weight is not None
    spatial = len(weight) - 2
    kernel = ctx.attr(node, "kernel_shape", weight[2:])
    if len(kernel) != spatial or not all(isinstance(k, int) for k in kernel):
        return Refusal("the size of the kernel is not known", node.inputs[1])
    strides, dilations = (list(ctx.attr(node, name, [1] * spatial)) for name in ("strides", "dilations"))
    pads: Sequence[int] | Refusal = list(ctx.attr(node, "pads", [0] * 2 * spatial))
    mode = ctx.attr(node, "auto_pad", "NOTSET")
    if mode == "VALID":
        pads = [0] * 2 * spatial
    elif mode in ("SAME_UPPER", "SAME_LOWER"):
        pads = _same_pads(node, kernel, strides, dilations, mode == "SAME_UPPER", ctx)
    if isinstance(pads, Refusal):
        return pads
    return {
        "kernel_shape": list(kernel),
        "strides": strides,
        "pads": pads,
        "dilations": dilations,
        "group": ctx.attr(node, "group", 1),
        "layout": ctx.attr(node, "layout", "NCHW"),
    }


def _same_pads(
    node: ir.Node,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    upper: bool,
    ctx: GraphContext,
) -> list[int] | Refusal:
    """Pads that make the output ceil(input / stride) long; the odd one goes to the end with SAME_UPPER."""
    shape = dims(node.inputs[0], ctx)
    begins, ends = [], []
    for axis, (k, s, d) in enumerate(zip(kernel, strides, dilations, strict=True)):
        size = None if shape is None else shape[axis + 2]
        if s == 1:
            total = d * (k - 1)
        elif isinstance(size, int):
            total = max((-(-size // s) - 1) * s + d * (k - 1) + 1 - size, 0)
        else:
            return Refusal("auto_pad with a stride needs the input's size, which is not known", node.inputs[0])
        begins.append(total // 2 if upper else total - total // 2)
        ends.append(total - begins[-1])
    return [*begins, *ends]
