"""Reads linear projections with constant weights, and joins those of one tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.pattern import operands
from cuvil_onnx.rules._common import dims, vector


@dataclass(frozen=True)
class Projection:
    """x W + b, computed by `nodes`, the product first; W [K, N] and b are constant."""

    x: ir.Value
    weight: ir.Value
    bias: ir.Value | None
    nodes: tuple[ir.Node, ...]


def projection(value: ir.Value | None, ctx: GraphContext) -> Projection | None:
    """The projection that computes `value`; None when it is none."""
    node = ctx.producer(value)
    if node is None:
        return None
    if node.op_type == "MatMul" and node.domain == "":
        x, weight = node.inputs
        if x is None or weight is None or ctx.rank(weight) != 2 or not ctx.is_constant(weight):
            return None
        return Projection(x, weight, None, (node,))
    if node.op_type != "Add" or node.domain != "":
        return None
    for product, bias in operands(node):
        inner = projection(product, ctx) if ctx.producer(product, "MatMul") is not None else None
        if inner is None or not ctx.is_constant(bias):
            continue
        if vector(bias, (dims(inner.weight, ctx) or (None,))[-1], ctx, rank=ctx.rank(product)):
            return Projection(inner.x, inner.weight, bias, (*inner.nodes, node))
    return None


def join(parts: Sequence[Projection], name: str, ctx: GraphContext) -> list[ir.Node]:
    """The nodes of one projection whose result holds those of `parts`, of one x, next to each other."""
    biased = any(p.bias is not None for p in parts)
    biases = [
        np.zeros(_array(p.weight, ctx).shape[1], _array(p.weight, ctx).dtype) if p.bias is None else _array(p.bias, ctx)
        for p in parts
        if biased
    ]
    weight = np.concatenate([_array(p.weight, ctx) for p in parts], 1)
    bias = np.concatenate([b.reshape(-1) for b in biases]) if biased else None
    return project(parts[0].x, weight, bias, name, ctx)


def project(
    x: ir.Value, weight: npt.NDArray[Any], bias: npt.NDArray[Any] | None, name: str, ctx: GraphContext
) -> list[ir.Node]:
    """The nodes of x W + b."""
    dtype = ctx.dtype(x)
    assert dtype is not None
    nodes = [ctx.node("MatMul", [x, _initializer(weight, f"{name}_weight", dtype, ctx)])]
    product = nodes[0].outputs[0]
    product.type, product.shape = ir.TensorType(dtype), ir.Shape((*(dims(x, ctx) or ())[:-1], weight.shape[1]))
    if bias is not None:
        nodes.append(ctx.node("Add", [product, _initializer(bias, f"{name}_bias", dtype, ctx)], like=product))
    return nodes


def arrays(part: Projection, ctx: GraphContext) -> tuple[npt.NDArray[Any], npt.NDArray[Any] | None]:
    """W and b."""
    return _array(part.weight, ctx), None if part.bias is None else _array(part.bias, ctx)


def _array(value: ir.Value, ctx: GraphContext) -> npt.NDArray[Any]:
    array = ctx.constant(value, max_elements=None)
    assert array is not None
    return array


def _initializer(array: npt.NDArray[Any], name: str, dtype: ir.DataType, ctx: GraphContext) -> ir.Value:
    return ctx.initializer(ir.Tensor(np.ascontiguousarray(array), dtype=dtype), name)
