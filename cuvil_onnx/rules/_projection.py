"""Reads linear projections with constant weights, and joins those of one tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.pattern import operands
from cuvil_onnx.rules._common import dims, vector

LAZY_BYTES = 1 << 20


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
    widths = [_width(p, ctx) for p in parts]
    weights = [_tensor(p.weight, ctx) for p in parts]
    weight = _computed(weights, lambda arrays: np.concatenate(arrays, 1), (_rows(parts[0], ctx), sum(widths)))
    if all(p.bias is None for p in parts):
        return _project(parts[0].x, weight, None, name, ctx)
    dtype = weights[0].dtype.numpy()
    biases = [
        np.zeros(w, dtype) if p.bias is None else _tensor(p.bias, ctx).numpy().reshape(-1)
        for p, w in zip(parts, widths, strict=True)
    ]
    return _project(parts[0].x, weight, np.concatenate(biases), name, ctx)


def reorder(part: Projection, columns: npt.NDArray[np.int64], name: str, ctx: GraphContext) -> list[ir.Node]:
    """The nodes of a projection whose result holds that of `part` with its columns in another order."""
    shape = (_rows(part, ctx), len(columns))
    weight = _computed([_tensor(part.weight, ctx)], lambda arrays: arrays[0][:, columns], shape)
    bias = None if part.bias is None else _tensor(part.bias, ctx).numpy().reshape(-1)[columns]
    return _project(part.x, weight, bias, name, ctx)


def _project(
    x: ir.Value, weight: ir.TensorProtocol, bias: npt.NDArray[Any] | None, name: str, ctx: GraphContext
) -> list[ir.Node]:
    nodes = [ctx.node("MatMul", [x, ctx.initializer(weight, f"{name}_weight")])]
    product = nodes[0].outputs[0]
    width = weight.shape.numpy()[1]
    product.type, product.shape = ir.TensorType(weight.dtype), ir.Shape((*(dims(x, ctx) or ())[:-1], width))
    if bias is not None:
        added = ctx.initializer(ir.Tensor(np.ascontiguousarray(bias), dtype=weight.dtype), f"{name}_bias")
        nodes.append(ctx.node("Add", [product, added], like=product))
    return nodes


def _computed(
    sources: Sequence[ir.TensorProtocol],
    compute: Callable[[list[npt.NDArray[Any]]], npt.NDArray[Any]],
    shape: tuple[int, ...],
) -> ir.TensorProtocol:
    """A tensor made of others: large ones only when somebody reads it, or a large model would have to fit in memory."""
    dtype = sources[0].dtype

    def make() -> ir.TensorProtocol:
        array = np.ascontiguousarray(compute([s.numpy() for s in sources]))
        for source in sources:
            if isinstance(source, ir.ExternalTensor):
                source.release()  # or the whole file of a large model stays mapped
        return ir.Tensor(array, dtype=dtype)

    if sum(s.nbytes for s in sources) < LAZY_BYTES:
        return make()
    return ir.LazyTensor(make, dtype=dtype, shape=ir.Shape(shape))


def _tensor(value: ir.Value, ctx: GraphContext) -> ir.TensorProtocol:
    tensor = ctx.tensor(value)
    assert tensor is not None
    return tensor


def _rows(part: Projection, ctx: GraphContext) -> int:
    return int(_tensor(part.weight, ctx).shape.numpy()[0])


def _width(part: Projection, ctx: GraphContext) -> int:
    return int(_tensor(part.weight, ctx).shape.numpy()[1])
