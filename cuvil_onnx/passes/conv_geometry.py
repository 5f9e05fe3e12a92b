"""The window of a convolution in plain numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.rule import Refusal


def resolve(node: ir.Node, ctx: GraphContext) -> dict[str, Any] | Refusal:
    """The attributes of FusedConv that say what a Conv's attributes and weight say, with `auto_pad` worked out."""
    weight = ctx.shape(node.inputs[1])
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
    shape = ctx.shape(node.inputs[0])
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
