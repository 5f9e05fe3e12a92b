"""Divides a tensor by a scale a channel without a node of its own: in the norm, factor or product that computes it.

AWQ multiplies the rows of a weight by a scale and divides the input by it. The division goes into

* the gain (and bias) of a layer or RMS norm, fused or not, or a constant that the tensor is multiplied by,
* one factor of a product of two tensors, such as the "up" half of a gated unit,
* the columns of the quantized product before it, that is into its scales: the codes stay,

wherever nothing else reads what is changed. Scales and gains are rounded once more by that, nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from cuvil_onnx.quantize.grid import Array, representable
from cuvil_onnx.quantize.store import Stored
from cuvil_onnx.rewrite.graph import GraphContext

GAINS: Mapping[tuple[str, str], tuple[int, ...]] = {
    ("", "LayerNormalization"): (1, 2),
    ("", "RMSNormalization"): (1,),
    ("", "SimplifiedLayerNormalization"): (1,),
    ("com.microsoft", "SkipLayerNormalization"): (2, 3),
    ("com.microsoft", "SkipSimplifiedLayerNormalization"): (2,),
    ("cuvil", "LayerNorm"): (1, 2),
}
"""Norms, and which of their inputs are multiplied into the first output: the gain, and a bias added behind it."""

Edit = Callable[[Array, Mapping[Any, Stored]], None]
"""Divides something by a scale a channel; is given the scale and the quantized weights by key."""

MAX_DEPTH = 6


class Division:
    """A way to divide a tensor's channels that costs nothing at run time."""

    def __init__(self, edits: list[Edit]) -> None:
        self._edits = edits

    def apply(self, divisor: Array, stored: Mapping[Any, Stored]) -> None:
        """Does it; ``divisor`` is float32 [channels]."""
        for edit in self._edits:
            edit(divisor, stored)


def plan_division(
    value: ir.Value,
    readers: Collection[ir.Node],
    keys: Mapping[ir.Node, Hashable],
    channels: int,
    ctx: GraphContext,
) -> Division | None:
    """How ``value`` [..., channels] can be divided; None when that needs a node.

    Args:
        value: the tensor.
        readers: the nodes that may see the divided tensor; another reader makes it impossible.
        keys: the products that are quantized and whose weight no other one shares, with the keys of their weights.
        channels: the last dimension of ``value``.
        ctx: the model.
    """
    planner = _Planner(keys, ctx)
    found = planner.push(value, set(readers), slice(0, channels), channels, MAX_DEPTH)
    return Division(planner.edits) if found else None


class _Planner:
    """Follows a tensor back to what can be divided instead, collecting the edits."""

    def __init__(self, keys: Mapping[ir.Node, Hashable], ctx: GraphContext) -> None:
        self.edits: list[Edit] = []
        self._keys, self._ctx = keys, ctx

    def push(self, value: ir.Value | None, readers: set[ir.Node], part: slice, channels: int, depth: int) -> bool:
        """Whether columns ``part`` of a value that has ``channels`` can be divided; leaves no edits when not."""
        node = None if value is None else value.producer()
        if value is None or node is None or not depth or value.is_graph_output():
            return False
        if not readers.issuperset(self._ctx.users(value)):
            return False
        known = len(self.edits)
        if self._node(node, value, part, channels, depth - 1):
            return True
        del self.edits[known:]
        return False

    def _node(self, node: ir.Node, value: ir.Value, part: slice, channels: int, depth: int) -> bool:
        kind, ctx = (node.domain, node.op_type), self._ctx
        if kind in GAINS:
            return node.outputs[0] is value and self._norm(node, GAINS[kind], part, channels)
        if kind == ("cuvil", "GatedUnit"):
            up = channels if ctx.attr(node, "gate_first", 1) else 0
            return self.push(node.inputs[0], {node}, slice(up + part.start, up + part.stop), 2 * channels, depth)
        if kind == ("cuvil", "Attention"):
            return self._attention(node, part, channels, depth)
        if kind == ("cuvil", "RotaryEmbedding"):
            return self._rotary(node, part, channels, depth)
        if kind in (("", "Mul"), ("", "Add")):
            return self._elementwise(node, part, channels, depth)
        if node in self._keys:
            return self._product(node, self._keys[node], part, channels)
        return False

    def _norm(self, node: ir.Node, places: tuple[int, ...], part: slice, channels: int) -> bool:
        if self._ctx.attr(node, "axis", -1) not in (-1, (self._ctx.rank(node.inputs[0]) or 0) - 1):
            return False
        present = [i for i in places if i < len(node.inputs) and node.inputs[i] is not None]
        if not present or present[0] != places[0]:
            return False  # without a gain
        return all(self._divides_constant(node, i, part, channels) for i in present)

    def _elementwise(self, node: ir.Node, part: slice, channels: int, depth: int) -> bool:
        a, b = node.inputs[:2]
        if a is None or b is None or a is b:
            return False
        for index, other in ((1, a), (0, b)):
            if not self._ctx.is_constant(node.inputs[index]):
                continue
            if node.op_type == "Add" and not self.push(other, {node}, part, channels, depth):
                return False
            return self._divides_constant(node, index, part, channels)
        if node.op_type == "Add":
            return False
        return any(self._full_width(v, channels) and self.push(v, {node}, part, channels, depth) for v in (b, a))

    def _full_width(self, value: ir.Value, channels: int) -> bool:
        shape = self._ctx.shape(value)
        return bool(shape) and shape is not None and shape[-1] == channels

    def _attention(self, node: ir.Node, part: slice, channels: int, depth: int) -> bool:
        """The result is linear in the values, head by head."""
        ctx = self._ctx
        if ctx.attr(node, "kv_num_heads", 0) not in (0, ctx.attr(node, "num_heads")):
            return False  # a value channel serves several heads
        if ctx.attr(node, "layout") == "packed":
            start = 2 * channels
            return self.push(node.inputs[0], {node}, slice(start + part.start, start + part.stop), 3 * channels, depth)
        return len(node.inputs) > 2 and self.push(node.inputs[2], {node}, part, channels, depth)

    def _rotary(self, node: ir.Node, part: slice, channels: int, depth: int) -> bool:
        """Heads that are not rotated pass."""
        heads, rotated = int(self._ctx.attr(node, "num_heads", 0)), int(self._ctx.attr(node, "rotated_heads", 0))
        if not heads or not rotated or channels % heads or part.start < rotated * (channels // heads):
            return False
        return self.push(node.inputs[0], {node}, part, channels, depth)

    def _product(self, node: ir.Node, key: Hashable, part: slice, channels: int) -> bool:
        if node.op_type == "FusedMatMul":
            residual = node.inputs[3] if len(node.inputs) > 3 else None
            if self._ctx.attr(node, "activation", "") or residual is not None:
                return False
        biased = len(node.inputs) > 2 and node.inputs[2] is not None
        if biased and not self._divides_constant(node, 2, part, channels):
            return False

        def edit(divisor: Array, stored: Mapping[Any, Stored]) -> None:
            weight = stored[key]
            weight.scales[..., part] = representable(weight.scales[..., part] / divisor, weight.grid, np)
            if weight.offsets is not None:
                weight.offsets[..., part] /= divisor

        self.edits.append(edit)
        return True

    def _divides_constant(self, node: ir.Node, index: int, part: slice, channels: int) -> bool:
        """Divides a constant operand, in a copy, if it is a row of channels or one number."""
        ctx, value = self._ctx, node.inputs[index]
        tensor = ctx.tensor(value)
        if value is None or tensor is None or tensor.size not in (1, channels):
            return False
        shape = tuple(int(d) for d in tensor.shape.numpy())
        if tensor.size == channels and (not shape or shape[-1] != channels):
            return False

        def edit(divisor: Array, stored: Mapping[Any, Stored]) -> None:
            tensor = ctx.tensor(node.inputs[index])
            assert tensor is not None and value is not None
            row = np.broadcast_to(tensor.numpy().astype(np.float32).reshape(-1), channels).copy()
            row[part] /= divisor
            row = row.reshape((*shape[:-1], channels)).astype(tensor.dtype.numpy())
            node.replace_input_with(index, ctx.initializer(ir.Tensor(row, dtype=tensor.dtype), f"{value.name}_divided"))

        self.edits.append(edit)
        return True
