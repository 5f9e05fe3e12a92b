"""Which nodes can work on [N, H, W, C] tensors, and what they become."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

import custom_ops
from cuvil_onnx.passes.conv_geometry import resolve
from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.rule import Refusal

TO_NHWC = (0, 2, 3, 1)
TO_NCHW = (0, 3, 1, 2)
MAX_CONSTANT = 1 << 20
"""Elements of a constant that may be stored again in the other layout."""

POOLS = ("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool")
ELEMENTWISE = frozenset(
    {
        *(
            "Abs",
            "Add",
            "Ceil",
            "Celu",
            "Clip",
            "Div",
            "Elu",
            "Erf",
            "Exp",
            "Floor",
            "Gelu",
            "HardSigmoid",
            "HardSwish",
        ),
        *("Identity", "LeakyRelu", "Log", "Max", "Min", "Mish", "Mul", "Neg", "PRelu", "Pow", "Reciprocal", "Relu"),
        *("Selu", "Sigmoid", "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Swish", "Tanh", "ThresholdedRelu"),
    }
)


def is_candidate(node: ir.Node, types: Sequence[ir.DataType], ctx: GraphContext) -> bool:
    """Whether the node computes a 4-D tensor of one of ``types`` and has a form for NHWC."""
    if not node.outputs or (node.domain and not _is_cuvil_gelu(node)):
        return False
    result = node.outputs[0]
    if ctx.dtype(result) not in types or ctx.rank(result) != 4 or ctx.rank(node.inputs[0]) != 4:
        return False
    if node.inputs and ctx.is_constant(node.inputs[0]) and node.op_type not in ELEMENTWISE:
        return False
    if any(ctx.use_count(v) or v.is_graph_output() for v in node.outputs[1:]):
        return False
    if node.op_type == "Conv":
        return ctx.is_constant(node.inputs[1]) and not isinstance(resolve(node, ctx), Refusal)
    if node.op_type in POOLS:
        return _pool(node, ctx) is not None
    if node.op_type == "Concat":
        return ctx.attr(node, "axis") in (1, -3) and all(_operand(v, ctx) for v in node.inputs)
    if node.op_type == "ReduceMean":
        return _is_spatial_mean(node, ctx)
    if node.op_type == "Resize":
        return _resize_inputs(node, ctx) is not None
    if node.op_type in ELEMENTWISE:
        moving = [v for v in node.inputs if v is not None and not ctx.is_constant(v)]
        return bool(moving) and all(ctx.rank(v) == 4 for v in moving) and all(_operand(v, ctx) for v in node.inputs)
    return False


def _is_cuvil_gelu(node: ir.Node) -> bool:
    return node.domain == "cuvil" and node.op_type == "Gelu"


def _is_spatial_mean(node: ir.Node, ctx: GraphContext) -> bool:
    """A mean over H and W that keeps the rank."""
    axes = ctx.attr(node, "axes")
    if axes is None and len(node.inputs) > 1:
        axes = ctx.ints(node.inputs[1])
    return axes is not None and sorted(a % 4 for a in axes) == [2, 3] and bool(ctx.attr(node, "keepdims", 1))


def _resize_inputs(node: ir.Node, ctx: GraphContext) -> list[npt.NDArray[Any] | None] | None:
    """Scales and sizes of a Resize, NCHW; None when it cannot be turned.

    Only "nearest" is the same computation along every axis in every implementation.
    """
    if ctx.attr(node, "mode", "nearest") != "nearest" or "axes" in node.attributes or ctx.opset() < 11:
        return None
    if ctx.attr(node, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
        return None
    found: list[npt.NDArray[Any] | None] = []
    for value in node.inputs[2:]:
        array = ctx.constant(value)
        if value is not None and array is None:
            return None
        found.append(array if array is not None and array.size == 4 else None)
    return found if any(a is not None for a in found) else None


def _operand(value: ir.Value | None, ctx: GraphContext) -> bool:
    tensor = ctx.tensor(value)
    return tensor is None or (len(tensor.shape) <= 4 and tensor.size <= MAX_CONSTANT)


def _pool(node: ir.Node, ctx: GraphContext) -> dict[str, Any] | None:
    """Attributes of cuvil::Pool; None when the node cannot be one."""
    whole = node.op_type.startswith("Global")
    kernel = [1, 1] if whole else ctx.attr(node, "kernel_shape")
    if kernel is None or len(kernel) != 2 or ctx.attr(node, "storage_order", 0):
        return None
    padding = ctx.attr(node, "auto_pad", "NOTSET")
    strides, dilations = (list(ctx.attr(node, name, [1, 1])) for name in ("strides", "dilations"))
    pads = [0] * 4 if padding == "VALID" else list(ctx.attr(node, "pads", [0] * 4))
    if padding in ("SAME_UPPER", "SAME_LOWER"):
        if strides != [1, 1]:
            return None  # the padding depends on the size of the input
        total = [d * (k - 1) for k, d in zip(kernel, dilations, strict=True)]
        small, large = [t // 2 for t in total], [t - t // 2 for t in total]
        pads = [*small, *large] if padding == "SAME_UPPER" else [*large, *small]
    return {
        "mode": "max" if "Max" in node.op_type else "average",
        "kernel_shape": list(kernel),
        "strides": strides,
        "pads": pads,
        "dilations": dilations,
        "ceil_mode": ctx.attr(node, "ceil_mode", 0),
        "count_include_pad": ctx.attr(node, "count_include_pad", 0),
        "global": int(whole),
        "layout": "NHWC",
    }


class Builder:
    """Makes the NHWC form of nodes.

    Attributes:
        nhwc: for each NCHW value its NHWC form.
    """

    def __init__(self, ctx: GraphContext) -> None:
        self._ctx = ctx
        self.nhwc: dict[ir.Value, ir.Value] = {}

    def build(self, node: ir.Node) -> tuple[ir.Node, ir.Function | None]:
        """The node (in no graph yet) and the function it calls, if any."""
        ctx = self._ctx
        dtype = ctx.dtype(node.outputs[0])
        assert dtype is not None
        if node.op_type == "Conv":
            geometry = resolve(node, ctx)
            assert not isinstance(geometry, Refusal)
            inputs = [self._get(node.inputs[0]), *node.inputs[1:]]
            attrs = {**geometry, "layout": "NHWC"}
            return self._custom("FusedConv", node, inputs, attrs, dtype)
        if node.op_type in POOLS:
            attrs = _pool(node, ctx) or {}
            return self._custom("Pool", node, [self._get(node.inputs[0])], attrs, dtype)
        if _is_cuvil_gelu(node):
            attrs = {name: attr.value for name, attr in node.attributes.items()}
            return self._custom("Gelu", node, [self._get(node.inputs[0])], attrs, dtype)
        plain = {name: attr.value for name, attr in node.attributes.items()}
        if node.op_type == "Concat":
            plain["axis"] = 3
        if node.op_type == "Resize":
            # The region of interest has no meaning without cropping, but must be there before opset 13.
            operands = [self._get(node.inputs[0]), node.inputs[1], *self._turned(_resize_inputs(node, ctx) or [])]
        elif node.op_type == "ReduceMean":
            operands = [self._get(node.inputs[0])]
            if "axes" in plain:
                plain["axes"] = [1, 2]
            else:
                operands.append(ctx.initializer(np.array([1, 2], np.int64), "spatial_axes"))
        else:
            operands = [self._get(v) for v in node.inputs]
        return ctx.node(node.op_type, operands, plain, like=node.outputs[0], name=node.name or None), None

    def _custom(
        self, op: str, node: ir.Node, inputs: Sequence[ir.Value | None], attrs: dict[str, Any], dtype: ir.DataType
    ) -> tuple[ir.Node, ir.Function]:
        made, function = custom_ops.make(
            op, inputs, 1, attrs, opset=self._ctx.opset(), dtype=dtype, cache=self._ctx.memo
        )
        made.name = self._ctx.fresh_name(node.name or op)
        return made, function

    def _turned(self, arrays: Sequence[npt.NDArray[Any] | None]) -> list[ir.Value | None]:
        """Four numbers per array, in the other order."""
        return [None if a is None else self._ctx.initializer(a[list(TO_NHWC)], "resize_nhwc") for a in arrays]

    def _get(self, value: ir.Value | None) -> ir.Value | None:
        if value is None:
            return None
        known = self.nhwc.get(value)
        if known is None:
            known = self._constant(value)
            self.nhwc[value] = known
        return known

    def _constant(self, value: ir.Value) -> ir.Value:
        """A constant operand whose broadcast against NHWC is what it was against NCHW."""
        array = self._ctx.constant(value, MAX_CONSTANT)
        assert array is not None, "a candidate's other operands are constant"
        if array.size == 1:
            return value
        shape = (1,) * (4 - array.ndim) + array.shape
        turned = np.ascontiguousarray(array.reshape(shape).transpose(TO_NHWC))
        if math.prod(turned.shape[:3]) == 1:
            turned = turned.reshape(-1)
        dtype = self._ctx.dtype(value)
        return self._ctx.initializer(ir.Tensor(turned, dtype=dtype), f"{value.name}_nhwc")
