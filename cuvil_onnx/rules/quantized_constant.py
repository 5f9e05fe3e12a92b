"""Quantizes constants once, here, instead of in every run: what training with simulated quantization leaves behind.

Before: QuantizeLinear(constant of floats, constant scales and zero points), to 4 or 8 bits, and perhaps a Clip of the
        codes (4 bits in bytes).
After:  the codes as an initializer.
Exactness: exact: division in float32, half to even, saturation, as QuantizeLinear is defined.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from cuvil_onnx.quantize.pack import code_tensor, codes_of
from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.rule import Exactness, Match, Phase, Refusal, Replacement, Rule
from cuvil_onnx.rules._common import TENSOR_CORE_TYPES

Array = npt.NDArray[Any]

_RANGES = {
    ir.DataType.INT4: (-8, 7),
    ir.DataType.UINT4: (0, 15),
    ir.DataType.INT8: (-128, 127),
    ir.DataType.UINT8: (0, 255),
}


class QuantizedConstant(Rule):
    """See the module's text."""

    name = "quantized_constant"
    phase = Phase.CLEANUP
    exactness = Exactness.EXACT
    roots = (("", "QuantizeLinear"),)

    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        x, scales, *zeros = node.inputs
        if not ctx.is_constant(x) or ctx.dtype(x) not in TENSOR_CORE_TYPES:
            return None
        zero = zeros[0] if zeros else None
        if not ctx.is_constant(scales) or (zero is not None and not ctx.is_constant(zero)):
            return Refusal("the scales or zero points of a constant are computed", scales)
        if ctx.dtype(scales) != ctx.dtype(x) or ctx.attr(node, "precision", 0) not in (0, ir.DataType.FLOAT):
            return Refusal("the constant and its scales have different types", scales)
        dtype = ctx.dtype(node.outputs[0])
        if dtype not in _RANGES:
            return Refusal(f"the result is {dtype}, 4 or 8 bits are required", node)
        array, steps = ctx.constant(x, max_elements=None), ctx.constant(scales, max_elements=None)
        assert array is not None and steps is not None
        if _spread(steps, array, node, ctx) is None:
            return Refusal("the scales do not have a shape that fits the constant", scales)
        if not np.isfinite(array.astype(np.float32)).all() or not (np.abs(steps.astype(np.float32)) > 0).all():
            return Refusal("the constant has NaN or infinite elements, or scales of 0", node)
        low, high = _RANGES[dtype]
        nodes = [node]
        clip = ctx.single_user(node.outputs[0], "Clip")
        bounds = None if clip is None else _bounds(clip, ctx)
        if clip is not None and bounds is not None:
            low, high = max(low, bounds[0]), min(high, bounds[1])
            nodes.append(clip)
        if low > high:
            return Refusal("no code lies within the bounds of the Clip", node)
        values = {"x": x, "scales": scales, "zero": zero}
        return Match(node, nodes, nodes[-1].outputs, values, {"dtype": dtype, "range": (low, high)})

    def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
        node, dtype = match.root, match.attrs["dtype"]
        x, steps = (ctx.constant(match.values[name], max_elements=None) for name in ("x", "scales"))
        assert x is not None and steps is not None
        spread = _spread(steps.astype(np.float32), x, node, ctx)
        assert spread is not None
        codes = np.rint(x.astype(np.float32) / spread)
        zero = ctx.tensor(match.values["zero"])
        if zero is not None:
            spread = _spread(codes_of(zero).astype(np.float32), x, node, ctx)
            assert spread is not None
            codes += spread
        signed = _RANGES[dtype][0] < 0
        integers = np.clip(codes, *match.attrs["range"]).astype(np.int8 if signed else np.uint8)
        value = ctx.initializer(code_tensor(integers, dtype), node.outputs[0].name or "codes")
        return Replacement((), (value,))


def _bounds(clip: ir.Node, ctx: GraphContext) -> tuple[int, int] | None:
    """The least and the largest code that a Clip lets through; None when they are computed."""
    found = [-256, 256]
    for index in (1, 2):
        value = clip.inputs[index] if index < len(clip.inputs) else None
        number = ctx.scalar(value)
        if number is not None:
            found[index - 1] = int(number)
        elif value is not None:
            return None
    return found[0], found[1]


def _spread(parameter: Array, x: Array, node: ir.Node, ctx: GraphContext) -> Array | None:
    """Scales or zero points as an array that broadcasts to `x`; None when they do not fit it."""
    block = int(ctx.attr(node, "block_size", 0))
    axis = int(ctx.attr(node, "axis", 1))
    if parameter.size == 1 and not block:
        return parameter.reshape(())
    if not -x.ndim <= axis < x.ndim:
        return None
    axis %= x.ndim
    if not block:
        shape = [1] * x.ndim
        shape[axis] = x.shape[axis]
        return parameter.reshape(shape) if parameter.shape == (x.shape[axis],) else None
    wanted = list(x.shape)
    wanted[axis] = -(-x.shape[axis] // block)
    if list(parameter.shape) != wanted:
        return None
    return np.take(parameter.repeat(block, axis), range(x.shape[axis]), axis)
