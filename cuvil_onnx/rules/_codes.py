"""Reads a product's constant weight back to its DequantizeLinear, and lays it out for cuvil::MatMulInt4."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from cuvil_onnx.quantize.pack import code_tensor, codes_of
from cuvil_onnx.rewrite.graph import GraphContext, named
from cuvil_onnx.rewrite.rule import Refusal
from cuvil_onnx.rules._common import TENSOR_CORE_TYPES

Array = npt.NDArray[Any]

FOUR_BITS = (ir.DataType.INT4, ir.DataType.UINT4)
CODES = (*FOUR_BITS, ir.DataType.INT8, ir.DataType.UINT8)
MAX_STEPS = 8


@dataclasses.dataclass(frozen=True)
class Weight:
    """A constant weight [..., K, N] of codes.

    Attributes:
        node: the DequantizeLinear.
        swapped: whether its result is [..., N, K].
        dtype: the element type that the product reads.
        block_size: rows that share a scale; 0: all of them.
        own: the DequantizeLinear and what follows it up to the product, as far as nothing else reads it.
    """

    node: ir.Node
    swapped: bool
    dtype: ir.DataType
    block_size: int
    own: tuple[ir.Node, ...] = ()


@dataclasses.dataclass(frozen=True)
class Operands:
    """The inputs of cuvil::MatMulInt4 that hold the weight."""

    codes: ir.Value
    scales: ir.Value
    zero_points: ir.Value | None


def weight_of(value: ir.Value | None, ctx: GraphContext, swapped: bool = False) -> Weight | Refusal | None:
    """What constant codes `value` is made of.

    Args:
        value: an operand of a product.
        ctx: the graph.
        swapped: whether the product transposes the operand.

    Returns:
        None when it is not made by DequantizeLinear; a Refusal when by one whose groups the op cannot express.
    """
    dtype = ctx.dtype(value)
    node = ctx.producer(value)
    own: list[ir.Node] = []
    alone = True
    for _ in range(MAX_STEPS):
        alone = alone and node is not None and ctx.single_user(node.outputs[0]) is not None
        if alone and node is not None:
            own.append(node)
        if node is None or node.domain or node.op_type == "DequantizeLinear":
            break
        if node.op_type == "Transpose":
            rank = ctx.rank(node.inputs[0])
            if rank not in (2, 3) or [*ctx.attr(node, "perm", range(rank)[::-1])] != [
                *range(rank - 2),
                rank - 1,
                rank - 2,
            ]:
                return None
            swapped = not swapped
        elif node.op_type not in ("Identity", "Cast") or ctx.dtype(node.inputs[0]) not in TENSOR_CORE_TYPES:
            return None
        node = ctx.producer(node.inputs[0])
    if node is None or node.domain or node.op_type != "DequantizeLinear" or dtype not in TENSOR_CORE_TYPES:
        return None
    block = _block_size(node, swapped, ctx)
    if isinstance(block, Refusal):
        return block
    weight = Weight(node, swapped, dtype, block, tuple(own))
    return _fits_type(weight, ctx) or weight


def _block_size(node: ir.Node, swapped: bool, ctx: GraphContext) -> int | Refusal:
    """Rows [..., K, N] that share a scale, or why there is no such number."""
    codes, scales, *zeros = node.inputs
    tensor, shape, scale_shape = ctx.tensor(codes), ctx.static_shape(codes), ctx.static_shape(scales)
    if tensor is None or shape is None or scale_shape is None:
        return Refusal("the quantized weight is computed, or may be overridden by the caller", codes)
    if tensor.dtype not in CODES:
        return Refusal(f"the weight is {tensor.dtype}, 4 or 8 bits are required", codes)
    if len(shape) not in (2, 3):
        return Refusal(f"the quantized weight has rank {len(shape)}, 2 or 3 is required", codes)
    if not ctx.is_constant(scales) or any(z is not None and not ctx.is_constant(z) for z in zeros):
        return Refusal("the scales or zero points are computed, or may be overridden by the caller", scales)
    rank = len(shape)
    summed = rank - 1 if swapped else rank - 2
    block = int(ctx.attr(node, "block_size", 0))
    if rank == 3 and not block:
        return Refusal("a weight of rank 3 has no groups along the summed axis", node)
    if int(np.prod(scale_shape)) == 1 and not block:
        return 0  # one scale for all
    axis = int(ctx.attr(node, "axis", 1)) % rank
    if block and axis != summed:
        return Refusal("the groups lie along the columns of the weight, not along the summed axis", node)
    if not block and axis == summed:
        return Refusal("each row of the weight has a scale of its own, columns or groups of rows are required", node)
    return block


def _fits_type(weight: Weight, ctx: GraphContext) -> Refusal | None:
    """A Refusal when the scales are normal numbers only in a larger type than the product's."""
    scales = weight.node.inputs[1]
    array = ctx.constant(scales, max_elements=None)
    assert array is not None
    info = ml_dtypes.finfo(weight.dtype.numpy())  # type: ignore[no-untyped-call]
    magnitudes = np.abs(array.astype(np.float32))
    if (
        ctx.dtype(scales) != weight.dtype
        and not (
            ((magnitudes >= float(info.smallest_normal)) & (magnitudes <= float(info.max))) | (magnitudes == 0)
        ).all()
    ):
        return Refusal(f"some scales are too small or too large for {weight.dtype}", scales)
    return None


def operands(weight: Weight, graph: ir.Graph, ctx: GraphContext) -> Operands:
    """The weight in the layout of the op: the model's own initializers where they fit, else new ones of `graph`.

    They are the graph's that the product is in, since ONNX Runtime does not load a model in a subgraph of which 4-bit
    weights are fused with a product when they lie in an outer graph (1.31, TransposeDQWeightsForMatMulNBits).
    """
    codes, scales, *rest = weight.node.inputs
    zeros = rest[0] if rest else None
    held = ctx.tensor(zeros)
    if held is not None and not codes_of(held).any():
        zeros = None  # as when they are absent
    assert codes is not None and scales is not None
    tensor = ctx.tensor(codes)
    assert tensor is not None
    narrowed = _narrowed(tensor, None if zeros is None else ctx.tensor(zeros))
    kind = narrowed or tensor.dtype
    columns = int(tensor.shape.numpy()[-2 if weight.swapped else -1])
    new_codes = codes
    if narrowed is not None or weight.swapped:
        array = codes_of(tensor)
        array = np.ascontiguousarray(array.swapaxes(-1, -2)) if weight.swapped else array
        new_codes = _shared(codes, (kind, weight.swapped), code_tensor(array, kind), graph, ctx)
    return Operands(
        new_codes,
        _parameter(scales, weight.dtype, weight, columns, graph, ctx),
        None if zeros is None else _parameter(zeros, kind, weight, columns, graph, ctx),
    )


def _narrowed(codes: ir.TensorProtocol, zeros: ir.TensorProtocol | None) -> ir.DataType | None:
    """The type of 4 bits that holds 8-bit codes and zero points unchanged; None when there is none."""
    kinds = {ir.DataType.INT8: (ir.DataType.INT4, -8, 7), ir.DataType.UINT8: (ir.DataType.UINT4, 0, 15)}
    if codes.dtype not in kinds or codes.size == 0:
        return None
    kind, low, high = kinds[codes.dtype]
    arrays = [codes_of(t) for t in (codes, zeros) if t is not None]
    return kind if all(a.min() >= low and a.max() <= high for a in arrays) else None


def _parameter(
    value: ir.Value, dtype: ir.DataType, weight: Weight, columns: int, graph: ir.Graph, ctx: GraphContext
) -> ir.Value:
    """Scales or zero points as [..., groups, N], or [N] without groups, of the given type."""
    tensor = ctx.tensor(value)
    assert tensor is not None
    transposed = weight.swapped and weight.block_size > 0
    per_tensor = weight.block_size == 0 and tuple(tensor.shape.numpy()) != (columns,)
    if tensor.dtype == dtype and not transposed and not per_tensor:
        return value
    floats = dtype.is_floating_point()
    array = np.asarray(tensor.numpy()) if floats else codes_of(tensor)
    if transposed:
        array = array.swapaxes(-1, -2)
    if per_tensor:
        array = np.broadcast_to(array.reshape(-1), (columns,))
    array = np.ascontiguousarray(array)
    made = ir.Tensor(array.astype(dtype.numpy()), dtype=dtype) if floats else code_tensor(array, dtype)
    return _shared(value, (dtype, transposed, per_tensor and columns), made, graph, ctx)


def _shared(value: ir.Value, form: Hashable, tensor: ir.TensorProtocol, graph: ir.Graph, ctx: GraphContext) -> ir.Value:
    """`value` in another form, as an initializer of a graph, which may be a subgraph; equal requests share it."""
    key = ("codes", graph, value, form)
    known = ctx.memo.get(key)
    if isinstance(known, ir.Value) and known.is_initializer() and known.graph is graph:
        return known
    hint = value.name or "codes"
    if graph is ctx.model.graph:
        made = ctx.initializer(tensor, hint)
    else:
        name = ctx.fresh_name(hint)
        made = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()))
        made.const_value = named(tensor, name)
        graph.register_initializer(made)
    ctx.memo[key] = made
    return made
