"""Puts quantized weights into the graph as com.microsoft::MatMulNBits, for runtimes that know no functions.

Its codes lie by output column, [N, groups, bytes], unsigned; without zero points they are centred.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from cuvil_onnx.quantize.grid import Array, column_chunks
from cuvil_onnx.quantize.insert import Parts, finish, gemm_addend
from cuvil_onnx.quantize.pack import codes_of
from cuvil_onnx.quantize.store import Stored
from cuvil_onnx.quantize.targets import Lookup, Product
from cuvil_onnx.quantize.weight import Weight
from cuvil_onnx.rewrite.graph import GraphContext

COLUMN_BLOCK = 128
"""Whole columns are written as blocks of this size with equal scales: the operator knows nothing longer than 256."""


def unfit(product: Product) -> str:
    """Why the operator cannot stand for a product; empty when it can."""
    if len(product.weight.shape) != 2:
        return "MatMulNBits takes no weight of rank 3"
    if product.node.op_type == "FusedMatMul":
        return "MatMulNBits has no activation and no residual"
    if product.weight.dtype == ir.DataType.BFLOAT16:
        return "MatMulNBits takes no bfloat16"
    return ""


def add_parts(weight: Weight, stored: Stored, ctx: GraphContext) -> Parts:
    """Adds a quantized weight to the model in the operator's layout."""
    name, (k, n) = weight.value.name or "weight", weight.shape
    grid = stored.grid
    block = COLUMN_BLOCK if grid.group_size < 0 else grid.group_size
    groups = -(-k // block)
    middle = 1 << (grid.bits - 1) if grid.symmetric else 0
    whole = codes_of(stored.codes).view(np.uint8)
    packed = np.empty((n, groups, block * grid.bits // 8), np.uint8)
    for part in column_chunks(k, n):
        codes = np.zeros((part.stop - part.start, groups * block), np.uint8)
        codes[:, :k] = whole[:, part].T + np.uint8(middle)  # of bytes, as two's complement wraps
        packed[part] = _bytes(codes, grid.bits).reshape(packed[part].shape)

    def spread(array: Array) -> Array:
        return np.ascontiguousarray((np.repeat(array, groups, 0) if grid.group_size < 0 else array).T)

    zeros = None
    if stored.zero_points is not None:
        padded = spread(stored.zero_points)
        if grid.bits == 4 and groups % 2:
            padded = np.concatenate([padded, np.zeros((n, 1), padded.dtype)], 1)
        zeros = ctx.initializer(_bytes(padded, grid.bits), f"{name}_zero_points")
    scales = ir.Tensor(spread(stored.scales).astype(weight.dtype.numpy()), dtype=weight.dtype)
    return Parts(
        ctx.initializer(packed, f"{name}_codes"), ctx.initializer(scales, f"{name}_scales"), zeros, None, block
    )


def insert_product(product: Product, parts: Parts, stored: Stored, ctx: GraphContext) -> None:
    """Replaces a product by MatMulNBits.

    Raises:
        RewriteError: the node cannot be replaced: a defect.
    """
    node, nodes = product.node, list[ir.Node]()
    x = node.inputs[0]
    if product.transposed_x:
        nodes.append(ctx.node("Transpose", [x], {"perm": [1, 0]}))
        x = nodes[-1].outputs[0]
    k, n = product.weight.shape
    bias = addend = None
    if node.op_type == "Gemm" and len(node.inputs) > 2 and node.inputs[2] is not None:
        bias, addend = gemm_addend(node, n, ctx, nodes)
    attrs = {"K": k, "N": n, "bits": stored.grid.bits, "block_size": parts.block_size}
    inputs = [x, parts.codes, parts.scales, parts.zero_points, None, bias]
    while inputs[-1] is None:
        inputs.pop()
    nodes.append(ctx.node("MatMulNBits", inputs, attrs, domain="com.microsoft"))
    if addend is not None:
        nodes.append(ctx.node("Add", [nodes[-1].outputs[0], addend]))
    finish(node, product.name, nodes, ctx)


def can_look_up(lookup: Lookup, stored: Stored, ctx: GraphContext) -> str:
    """Why a lookup cannot read the product's codes; empty when it can."""
    depth = lookup.weight.shape[0]
    block = COLUMN_BLOCK if stored.grid.group_size < 0 else stored.grid.group_size
    return f"rows of {depth} are not a multiple of the group of {block}" if depth % block else ""


def insert_lookup(lookup: Lookup, parts: Parts, stored: Stored, ctx: GraphContext) -> None:
    """Lets a Gather read the codes of the product with the same weight, through GatherBlockQuantized."""
    node = lookup.node
    vocabulary, bits = lookup.weight.shape[1], stored.grid.bits

    def rows(value: ir.Value | None) -> ir.Value | None:
        if value is None:
            return None
        shape = ctx.initializer(np.array([vocabulary, -1], np.int64), "table_shape")
        nodes.append(ctx.node("Reshape", [value, shape]))
        return nodes[-1].outputs[0]

    nodes: list[ir.Node] = []
    inputs = [rows(parts.codes), node.inputs[1], parts.scales, parts.zero_points]
    attrs = {"gather_axis": 0, "quantize_axis": 1, "block_size": parts.block_size, "bits": bits}
    inputs = inputs if inputs[-1] is not None else inputs[:-1]
    nodes.append(ctx.node("GatherBlockQuantized", inputs, attrs, domain="com.microsoft"))
    finish(node, lookup.name, nodes, ctx)


def _bytes(codes: Array, bits: int) -> Array:
    """Codes [rows, n] as bytes; of 4 bits two in one, the earlier in the low half, n being even."""
    raw = codes.view(np.uint8)
    packed: Array = raw if bits == 8 else raw[:, 0::2] & 0xF | raw[:, 1::2] << 4
    return packed
