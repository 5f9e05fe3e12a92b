"""Puts quantized weights into the graph: cuvil::MatMulInt4 (any ONNX Runtime runs it), and lookups in shared tables."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

import custom_ops
from cuvil_onnx.errors import RewriteError
from cuvil_onnx.quantize.grid import Array
from cuvil_onnx.quantize.pack import code_tensor
from cuvil_onnx.quantize.store import Stored
from cuvil_onnx.quantize.targets import Lookup, Product
from cuvil_onnx.quantize.weight import Weight
from cuvil_onnx.rewrite.apply import replace_node
from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.provenance import origins, stamp

NAME = "quantize"
"""What the step is called in reports and provenance."""


@dataclasses.dataclass(frozen=True)
class Parts:
    """The initializers of one quantized weight, which all its readers share."""

    codes: ir.Value
    scales: ir.Value
    zero_points: ir.Value | None
    offsets: ir.Value | None
    block_size: int


def add_parts(weight: Weight, stored: Stored, ctx: GraphContext) -> Parts:
    """Adds a quantized weight to the model."""
    name = weight.value.name or "weight"
    whole = stored.grid.group_size < 0 and stored.scales.ndim == 2
    block = 0 if whole else stored.grid.rows(weight.shape[-2])

    def numbers(array: Array | None, dtype: ir.DataType, hint: str) -> ir.Value | None:
        if array is None:
            return None
        array = array[0] if whole else array
        if dtype.is_floating_point():
            tensor: ir.TensorProtocol = ir.Tensor(array.astype(dtype.numpy()), dtype=dtype)
        else:
            tensor = code_tensor(array, dtype)
        return ctx.initializer(tensor, f"{name}_{hint}")

    scales = numbers(stored.scales, weight.dtype, "scales")
    assert scales is not None
    return Parts(
        ctx.initializer(stored.codes, f"{name}_codes"),
        scales,
        numbers(stored.zero_points, stored.grid.code_dtype, "zero_points"),
        numbers(stored.offsets, weight.dtype, "offsets"),
        block,
    )


def insert_product(product: Product, parts: Parts, stored: Stored, ctx: GraphContext) -> None:
    """Replaces a product by cuvil::MatMulInt4.

    Raises:
        RewriteError: the node cannot be replaced: a defect.
    """
    node = product.node
    x, nodes = node.inputs[0], list[ir.Node]()
    assert x is not None
    if product.transposed_x:
        nodes.append(ctx.node("Transpose", [x], {"perm": [1, 0]}))
        x = nodes[-1].outputs[0]
        x.type = ir.TensorType(product.weight.dtype)
    bias = residual = addend = None
    attrs = {"block_size": parts.block_size}
    if node.op_type == "FusedMatMul":
        bias, residual = (*node.inputs, None, None)[2:4]
        attrs |= {key: ctx.attr(node, key) for key in ("activation", "activation_params")}
    elif node.op_type == "Gemm" and len(node.inputs) > 2 and node.inputs[2] is not None:
        bias, addend = gemm_addend(node, product.weight.shape[-1], ctx, nodes)
    made, function = custom_ops.make(
        "MatMulInt4",
        [x, parts.codes, parts.scales, parts.zero_points, parts.offsets, bias, residual],
        1,
        attrs,
        opset=ctx.opset(),
        dtype=product.weight.dtype,
        cache=ctx.memo,
    )
    ctx.add_function(function)
    nodes.append(made)
    if addend is not None:
        nodes.append(ctx.node("Add", [made.outputs[0], addend]))
    finish(node, product.name, nodes, ctx)


def gemm_addend(
    node: ir.Node, columns: int, ctx: GraphContext, nodes: list[ir.Node]
) -> tuple[ir.Value | None, ir.Value | None]:
    """A Gemm's C times beta, as (bias, None) where it is a constant row, else as (None, what is to be added)."""
    c, beta = node.inputs[2], float(ctx.attr(node, "beta", 1.0))
    assert c is not None
    if beta == 0.0:
        return None, None
    tensor = ctx.tensor(c)
    if tensor is not None:
        array = tensor.numpy()
        row = array.size in (1, columns) and (array.ndim < 2 or array.shape[0] == 1)
        if row and (beta != 1.0 or array.shape != (columns,)):
            scaled = np.broadcast_to((array.astype(np.float32) * beta).reshape(-1), columns).astype(array.dtype)
            return ctx.initializer(ir.Tensor(np.ascontiguousarray(scaled), dtype=tensor.dtype), f"{c.name}_row"), None
        if row:
            return c, None
    if beta == 1.0:
        return None, c
    dtype = ctx.dtype(c) or ctx.dtype(node.outputs[0])
    assert dtype is not None
    factor = ctx.initializer(ir.Tensor(np.array(beta, dtype.numpy()), dtype=dtype), "beta")
    nodes.append(ctx.node("Mul", [c, factor]))
    return None, nodes[-1].outputs[0]


def insert_lookup(lookup: Lookup, parts: Parts, stored: Stored, ctx: GraphContext) -> None:
    """Lets a Gather read the codes [D, V] of the product that has the same weight: rows of the table are columns there.

    4-bit codes go through com.microsoft::GatherBlockQuantized, since ONNX's Gather takes none; 8-bit ones are gathered
    with their scales and dequantized then.
    """
    node = lookup.node
    indices = node.inputs[1]
    rank = ctx.rank(indices)
    assert rank is not None, "checked by can_look_up"
    depth = lookup.weight.shape[0]
    scales, zeros, block = parts.scales, parts.zero_points, parts.block_size
    if parts.codes.dtype in (ir.DataType.INT4, ir.DataType.UINT4):
        if not block:  # the operator has no whole columns: one block that reaches beyond the last row
            block = max(16, 1 << (depth - 1).bit_length())
            scales, zeros = _one_group(scales, ctx), None if zeros is None else _one_group(zeros, ctx)
        attrs = {"gather_axis": 1, "quantize_axis": 0, "block_size": block}
        nodes = [ctx.node("GatherBlockQuantized", [parts.codes, indices, scales, zeros], attrs, domain="com.microsoft")]
    else:
        axis = {"axis": 1} if block else {"axis": 0}
        nodes = [ctx.node("Gather", [parts.codes, indices], {"axis": 1})]
        nodes += [ctx.node("Gather", [v, indices], axis) for v in (scales, zeros) if v is not None]
        if block:
            inputs = [n.outputs[0] for n in nodes]
            nodes.append(ctx.node("DequantizeLinear", inputs, {"axis": 0, "block_size": block}))
        else:
            nodes += _dequantized_columns([n.outputs[0] for n in nodes], lookup.weight.dtype, ctx)
    order = [*range(1, rank + 1), 0]
    nodes.append(ctx.node("Transpose", [nodes[-1].outputs[0]], {"perm": order}))
    finish(node, lookup.name, nodes, ctx)


def can_look_up(lookup: Lookup, stored: Stored, ctx: GraphContext) -> str:
    """Why a lookup cannot read the product's codes; empty when it can."""
    if ctx.rank(lookup.node.inputs[1]) is None:
        return "the rank of the indices is not known"
    if stored.offsets is not None:
        return "the weight has float zero points"
    return ""


def _one_group(value: ir.Value, ctx: GraphContext) -> ir.Value:
    tensor = value.const_value
    assert tensor is not None and value.name is not None
    if tensor.dtype.bitwidth == 4:
        shape = ir.Shape((1, tensor.size))
        return ctx.initializer(
            ir.PackedTensor(np.frombuffer(tensor.tobytes(), np.uint8), tensor.dtype, shape=shape), f"{value.name}_row"
        )
    return ctx.initializer(ir.Tensor(tensor.numpy()[None], dtype=tensor.dtype), f"{value.name}_row")


def _dequantized_columns(values: list[ir.Value], dtype: ir.DataType, ctx: GraphContext) -> list[ir.Node]:
    """(codes - zero points) * scales of gathered columns, whose scales have one dimension less."""
    codes, scales, *zeros = values
    nodes = [ctx.node("Cast", [codes], {"to": int(dtype)})]
    if zeros:
        nodes.append(ctx.node("Cast", zeros, {"to": int(dtype)}))
        nodes.append(ctx.node("Sub", [nodes[0].outputs[0], nodes[1].outputs[0]]))
    nodes.append(ctx.node("Mul", [nodes[-1].outputs[0], scales]))
    return nodes


def _type(made: ir.Node, result: ir.Value) -> ir.TypeProtocol | None:
    """The type of a node of a chain that ends in ``result``: that of what it lays out anew, or the result's."""
    first = made.inputs[0]
    if made.op_type in ("Gather", "Reshape", "Transpose") and first is not None:
        return first.type
    return result.type


def finish(node: ir.Node, name: str, nodes: list[ir.Node], ctx: GraphContext) -> None:
    """Replaces ``node`` by ``nodes``, whose last one gives its result, under names of their own.

    Raises:
        RewriteError: that is impossible: a defect.
    """
    for made in nodes:
        made.name = made.name or ctx.fresh_name(f"{name}_{made.op_type}")
        for output in made.outputs:
            output.name = output.name or ctx.fresh_name(f"{made.name}_out")
            output.type = output.type or _type(made, node.outputs[0])
    stamp(nodes, origins([node]), NAME)
    result = nodes[-1].outputs[0]
    old = node.outputs[0]
    result.type, result.shape = old.type, None if old.shape is None else old.shape.copy()
    if not replace_node(node, nodes, [result], ctx):
        raise RewriteError(f"{node.op_type} {name!r} cannot be replaced by its quantized form")
