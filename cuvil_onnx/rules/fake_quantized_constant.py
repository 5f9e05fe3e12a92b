"""Stores weights that were trained with simulated quantization as the integers they are.

Before: Round(constant) of a weight divided by its scales, then Clip, + and - constants (zero points), * scales: what
        exporters leave of a fake-quantization that is written out; [N, K / g, g] by scales [N, K / g, 1] and a Reshape,
        or [K / g, g, N] by [K / g, 1, N], for groups. The result is read by products and lookups.
After:  DequantizeLinear(codes of 4 bits, scales, zero points). Any other Round of a constant is folded.
Exactness: exact.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from cuvil_onnx.quantize.pack import code_tensor
from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.pattern import operands
from cuvil_onnx.rewrite.rule import Exactness, Match, Phase, Refusal, Replacement, Rule

Array = npt.NDArray[Any]

OPSET = 21
MAX_STEPS = 8
_MOVES = ("Transpose", "Reshape", "Identity")
_READERS = {"MatMul": 1, "Gemm": 1, "Gather": 0}
"""Operators that can use codes, and which input those may be."""


@dataclasses.dataclass(frozen=True)
class _Chain:
    """Integers times scales, computed by `nodes`, the last one of which is the multiplication."""

    nodes: tuple[ir.Node, ...]
    integers: Array
    scales: Array


@dataclasses.dataclass(frozen=True)
class _Codes:
    """The inputs and attributes of a DequantizeLinear that does what `nodes` do; codes are int8, or uint8."""

    nodes: tuple[ir.Node, ...]
    codes: Array
    scales: Array
    zero_points: Array | None
    attrs: dict[str, int]


class FakeQuantizedConstant(Rule):
    """See the module's text."""

    name = "fake_quantized_constant"
    phase = Phase.CLEANUP
    exactness = Exactness.EXACT
    roots = (("", "Round"),)

    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        x = ctx.constant(node.inputs[0], max_elements=None)
        if x is None or ctx.dtype(node.inputs[0]) not in (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE):
            return None
        chain = _chain(node, x, ctx) if x.dtype == np.float32 and x.size and ctx.opset() >= OPSET else None
        found = None if chain is None else _codes(chain, ctx)
        if found is None or not _used_by_products(found.nodes[-1].outputs[0], ctx):
            return Match(node, (node,), node.outputs, attrs={"codes": None})
        return Match(node, found.nodes, found.nodes[-1].outputs, attrs={"codes": found})

    def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
        found: _Codes | None = match.attrs["codes"]
        result = match.outputs[0]
        if found is None:
            x = ctx.constant(match.root.inputs[0], max_elements=None)
            assert x is not None
            return Replacement((), (ctx.initializer(np.rint(x), result.name or "rounded"),))
        name = result.name or "weight"
        kind = ir.DataType.INT4 if found.zero_points is None else ir.DataType.UINT4
        inputs = [ctx.initializer(code_tensor(found.codes, kind), f"{name}_codes")]
        inputs.append(ctx.initializer(found.scales, f"{name}_scales"))
        if found.zero_points is not None:
            inputs.append(ctx.initializer(code_tensor(found.zero_points, kind), f"{name}_zero_points"))
        made = ctx.node("DequantizeLinear", inputs, found.attrs, like=result)
        return Replacement((made,), made.outputs)


def _chain(node: ir.Node, x: Array, ctx: GraphContext) -> _Chain | None:
    """Follows a Round to the product with the scales, computing what it computes."""
    nodes, array = [node], np.rint(x)
    for _ in range(MAX_STEPS):
        user = ctx.single_user(nodes[-1].outputs[0])
        if user is None or user.domain or len(user.outputs) != 1:
            return None
        value = nodes[-1].outputs[0]
        nodes.append(user)
        if user.op_type == "Clip" and user.inputs[0] is value:
            for index, bound in ((1, np.maximum), (2, np.minimum)):
                given = user.inputs[index] if index < len(user.inputs) else None
                limit = ctx.scalar(given)
                if given is not None and limit is None:
                    return None
                array = array if limit is None else bound(array, np.float32(limit))
            continue
        other = next((o for v, o in operands(user) if v is value), None) if len(user.inputs) == 2 else None
        constant = ctx.constant(other, max_elements=None)
        if constant is None or constant.dtype != np.float32:
            return None
        if user.op_type == "Mul":
            fits = np.broadcast_shapes(array.shape, constant.shape) == array.shape
            return _Chain(tuple(nodes), array, constant) if fits else None
        if user.op_type not in ("Add", "Sub", "Min", "Max") or (user.op_type == "Sub" and user.inputs[0] is not value):
            return None
        compute = {"Add": np.add, "Sub": np.subtract, "Min": np.minimum, "Max": np.maximum}[user.op_type]
        array = compute(array, constant)
        if array.shape != x.shape:
            return None
    return None


def _codes(chain: _Chain, ctx: GraphContext) -> _Codes | None:
    """The integers in 4 bits, and how scales belong to them; None when that cannot be said in DequantizeLinear."""
    integers = chain.integers
    scales = chain.scales.reshape((1,) * (integers.ndim - chain.scales.ndim) + chain.scales.shape)
    if not np.isfinite(integers).all() or (integers != np.rint(integers)).any() or not np.isfinite(scales).all():
        return None
    shared = tuple(i for i, d in enumerate(scales.shape) if d == 1)
    lowest = integers.min(axis=shared, keepdims=True)
    zeros = None
    if lowest.min(initial=0) < -8 or integers.max(initial=0) > 7:
        zeros = np.maximum(-lowest, 0)
        integers = integers + zeros
        if integers.max() > 15:
            return None
    codes = integers.astype(np.int8 if zeros is None else np.uint8)
    points = None if zeros is None else zeros.astype(np.uint8)
    varying = [i for i, d in enumerate(scales.shape) if d != 1]
    if len(varying) <= 1:
        axis = varying[0] if varying else 0
        form = (-1,) if varying else ()
        points = None if points is None else points.reshape(form)
        return _Codes(chain.nodes, codes, scales.reshape(form), points, {"axis": axis})
    return _grouped(chain, codes, scales, points, ctx)


def _grouped(chain: _Chain, codes: Array, scales: Array, points: Array | None, ctx: GraphContext) -> _Codes | None:
    """Groups that are an axis of their own, which a Reshape then joins with the axis in front of it."""
    reshape = ctx.single_user(chain.nodes[-1].outputs[0], "Reshape")
    shared = [i for i, d in enumerate(scales.shape) if d == 1]
    if reshape is None or codes.ndim != 3 or len(shared) != 1 or shared[0] == 0:
        return None
    group, axis = codes.shape[shared[0]], shared[0] - 1
    joined = [d for i, d in enumerate(codes.shape) if i != shared[0]]
    joined[axis] *= group
    target = ctx.ints(reshape.inputs[1])
    if target is None or len(target) != 2 or any(t not in (d, -1) for t, d in zip(target, joined, strict=True)):
        return None
    form = [d for i, d in enumerate(scales.shape) if i != shared[0]]
    points = None if points is None else points.reshape(form)
    attrs = {"axis": axis, "block_size": group}
    return _Codes((*chain.nodes, reshape), codes.reshape(joined), scales.reshape(form), points, attrs)


def _used_by_products(value: ir.Value, ctx: GraphContext) -> bool:
    """Whether only products and lookups read a weight, which must be worth to be read as codes in every run."""
    pending, seen = [value], 0
    while pending:
        current = pending.pop()
        users = ctx.users(current)
        if current.is_graph_output() or not users:
            return False
        for user in users:
            seen += 1
            if seen > 4 * MAX_STEPS or user.domain:
                return False
            if user.op_type in _MOVES and user.inputs[0] is current:
                pending.append(user.outputs[0])
                continue
            place = _READERS.get(user.op_type)
            if place is None or [i for i, v in enumerate(user.inputs) if v is current] != [place]:
                return False
    return True
