"""Folding y -> k * y + c, one k and c per output channel, into the constants of the node that computes y."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from cuvil_onnx.passes.computed import computed, is_lazy, unmap
from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.rule import Refusal

Array = npt.NDArray[Any]

LINEAR_OPS = ("Conv", "ConvTranspose", "Gemm")


@dataclasses.dataclass(frozen=True)
class Linear:
    """A Conv, ConvTranspose or Gemm with constant weight and bias.

    Attributes:
        node: the node.
        channels: output channels.
        weight: its weight as stored.
        bias: [channels], zeros when absent.
    """

    node: ir.Node
    channels: int
    weight: Array
    bias: Array


def linear(node: ir.Node, ctx: GraphContext) -> Linear | Refusal | None:
    """Reads a linear node; a Refusal says why its constants cannot be changed."""
    if node.domain or node.op_type not in LINEAR_OPS:
        return None
    weight = ctx.constant(node.inputs[1], max_elements=None)
    if weight is None:
        return Refusal(f"the weight of {node.op_type} is not constant", node)
    if node.op_type == "Conv":
        channels = weight.shape[0]
    elif node.op_type == "ConvTranspose":
        channels = weight.shape[1] * int(ctx.attr(node, "group", 1))
    else:
        channels = weight.shape[0 if ctx.attr(node, "transB", 0) else 1]
    bias_value = node.inputs[2] if len(node.inputs) > 2 else None
    bias = np.zeros(channels, weight.dtype) if bias_value is None else ctx.constant(bias_value)
    if bias is None:
        return Refusal(f"the bias of {node.op_type} is not constant", node)
    if bias.size != 1 and (bias.size != channels or bias.shape[-1] != channels):  # [N, 1] of a Gemm goes by rows
        return Refusal(f"the bias of {node.op_type} is not one number per channel", node)
    bias = np.broadcast_to(bias.reshape(-1), (channels,))
    return Linear(node, channels, weight, bias)


@dataclasses.dataclass(eq=False)
class Folded:
    """The new constants of a linear node.

    Attributes:
        weight: the new weight.
        bias: the new bias.
        scale: gives the new weight for the old one.
        values: the initializers that hold them, once there are any.
    """

    weight: Array
    bias: Array
    scale: Callable[[Array], Array]
    values: tuple[ir.Value, ...] = ()


def fold(source: Linear, k: Array, c: Array, ctx: GraphContext) -> Folded | Refusal:
    """Weight and bias of k * source + c, computed in double precision and rounded once.

    Refuses when a constant would become infinite or NaN: 0 * inf in a weight is NaN where the plain graph has none;
    and when the weights of a channel would lose digits as subnormal numbers, or become so large that a sum of products
    overflows where the scaled sum did not.
    """
    node, dtype = source.node, source.weight.dtype
    if not (np.isfinite(k).all() and np.isfinite(c).all()):
        return Refusal("a scale or shift is not finite", node)
    scale = _scaling(node, k, ctx)
    bias = source.bias.astype(np.float64)
    if node.op_type == "Gemm":
        bias = bias * float(ctx.attr(node, "beta", 1.0))
    with np.errstate(over="ignore"):
        new_weight, new_bias = scale(source.weight), (bias * k + c).astype(dtype)
    if np.isfinite(source.weight).all() and np.isfinite(source.bias).all():
        if not (np.isfinite(new_weight).all() and np.isfinite(new_bias).all()):
            return Refusal("the folded constants overflow", node)
    else:
        return Refusal("the constants are not finite", node)
    if not _in_range(_largest(source, ctx), np.abs(k), dtype):
        return Refusal("the folded weights are so small or large that digits or sums would be lost", node)
    return Folded(new_weight, new_bias, scale)


def _largest(source: Linear, ctx: GraphContext) -> Array:
    """The largest magnitude among the weights of each output channel."""
    node, weight = source.node, np.abs(source.weight)
    if weight.size == 0:
        return np.zeros(source.channels)
    if node.op_type == "ConvTranspose":
        group = int(ctx.attr(node, "group", 1))
        weight = weight.reshape(group, weight.shape[0] // group, weight.shape[1], -1).swapaxes(1, 2)
    elif node.op_type == "Gemm" and not ctx.attr(node, "transB", 0):
        weight = weight.T
    largest: Array = weight.reshape(source.channels, -1).max(1).astype(np.float64)
    return largest


def _in_range(largest: Array, factors: Array, dtype: np.dtype[Any]) -> bool:
    """Whether weights of these magnitudes may be multiplied by `factors`, one a channel."""
    info = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    # Factors of the other operand may be as large; half precision has no room for that, but is summed in float32.
    top = float(info.max) if dtype == np.float16 else float(info.max) ** 0.5
    after = largest * factors
    small = (after < float(info.smallest_normal)) & (after < largest) & (after != 0)
    large = (after > top) & (after > largest)
    return not bool((small | large).any())


def _scaling(node: ir.Node, k: Array, ctx: GraphContext) -> Callable[[Array], Array]:
    """The multiplication of a node's weight by one number per output channel."""
    op_type, group, transposed = node.op_type, int(ctx.attr(node, "group", 1)), ctx.attr(node, "transB", 0)

    def scale(old: Array) -> Array:
        weight = old.astype(np.float64)
        if op_type == "Conv":
            weight = weight * k.reshape(-1, *[1] * (weight.ndim - 1))
        elif op_type == "ConvTranspose":  # [inputs, outputs / group, ...]: each group of inputs has its own outputs
            inputs, per_group = weight.shape[:2]
            grouped = weight.reshape(group, inputs // group, per_group, -1) * k.reshape(group, 1, per_group, 1)
            weight = grouped.reshape(weight.shape)
        else:
            weight = weight * (k.reshape(-1, 1) if transposed else k)
        return weight.astype(old.dtype)

    return scale


def build(node: ir.Node, folded: Folded, ctx: GraphContext, like: ir.Value) -> ir.Node:
    """The node with new constants (the old ones may be shared and stay as they are)."""
    attrs: dict[str, Any] = {name: attr.value for name, attr in node.attributes.items()}
    if node.op_type == "Gemm":
        attrs["beta"] = 1.0
    weight_value = node.inputs[1]
    hint = weight_value.name if weight_value is not None and weight_value.name else "weight"
    if not folded.values or any(v.graph is not ctx.model.graph for v in folded.values):
        old = ctx.tensor(weight_value)
        assert old is not None, "linear() has read it"
        unmap(old)
        new = computed(old, folded.scale, old.dtype) if is_lazy(old) else folded.weight
        folded.values = ctx.initializer(new, f"{hint}_folded"), ctx.initializer(folded.bias, f"{hint}_bias")
    return ctx.node(node.op_type, [node.inputs[0], *folded.values], attrs, like=like, name=node.name or None)
