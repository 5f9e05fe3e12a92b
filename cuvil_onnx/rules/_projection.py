"""Reads linear projections with constant weights, in floats or quantized, and joins those of one tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from cuvil_onnx.quantize.pack import code_tensor, codes_of
from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.pattern import operands
from cuvil_onnx.rules._codes import CODES
from cuvil_onnx.rules._common import dims, make, vector

_BIAS = 5  # which input of cuvil::MatMulInt4
LAZY_BYTES = 1 << 20


@dataclass(frozen=True)
class Projection:
    """x W + b, computed by `nodes`, the product first; W [K, N] and b are constant.

    The product is a MatMul, or a cuvil::MatMulInt4 without bias, residual and activation, whose codes are `weight`.
    """

    x: ir.Value
    weight: ir.Value
    bias: ir.Value | None
    nodes: tuple[ir.Node, ...]


def projection(value: ir.Value | None, ctx: GraphContext) -> Projection | None:
    """The projection that computes `value`; None when it is none."""
    node = ctx.producer(value)
    if node is None:
        return None
    if _is_product(node, ctx):
        x, weight = node.inputs[:2]
        if x is None or weight is None or ctx.rank(weight) != 2 or not ctx.is_constant(weight):
            return None
        return Projection(x, weight, None, (node,))
    if node.op_type != "Add" or node.domain != "":
        return None
    for product, bias in operands(node):
        producer = ctx.producer(product)
        inner = projection(product, ctx) if producer is not None and _is_product(producer, ctx) else None
        if inner is None or not ctx.is_constant(bias):
            continue
        if vector(bias, (dims(inner.weight, ctx) or (None,))[-1], ctx, rank=ctx.rank(product)):
            return Projection(inner.x, inner.weight, bias, (*inner.nodes, node))
    return None


def joinable(parts: Sequence[Projection], ctx: GraphContext) -> bool:
    """Whether projections can be one: all in floats, or all quantized in groups of one size with codes of one type."""
    first = parts[0]
    kinds = {(p.nodes[0].op_type, ctx.dtype(p.weight), ctx.attr(p.nodes[0], "block_size")) for p in parts}
    present = {tuple(v is not None for v in _quantized(p)) for p in parts}
    return len(kinds) == len(present) == 1 and all(_rows(p, ctx) == _rows(first, ctx) for p in parts)


def join(parts: Sequence[Projection], name: str, ctx: GraphContext) -> list[ir.Node]:
    """The nodes of one projection whose result holds those of `parts`, of one x and joinable, next to each other."""
    nodes = _product(parts, None, name, ctx)
    if all(p.bias is None for p in parts):
        return nodes
    dtype = parts[0].nodes[0].outputs[0].dtype
    assert dtype is not None
    biases = [
        np.zeros(_width(p, ctx), dtype.numpy()) if p.bias is None else _tensor(p.bias, ctx).numpy().reshape(-1)
        for p in parts
    ]
    return _biased(nodes, np.concatenate(biases), dtype, name, ctx)


def reorder(part: Projection, columns: npt.NDArray[np.int64], name: str, ctx: GraphContext) -> list[ir.Node]:
    """The nodes of a projection whose result holds that of `part` with its columns in another order."""
    nodes = _product([part], columns, name, ctx)
    if part.bias is None:
        return nodes
    bias = _tensor(part.bias, ctx)
    return _biased(nodes, bias.numpy().reshape(-1)[columns], bias.dtype, name, ctx)


def _is_product(node: ir.Node, ctx: GraphContext) -> bool:
    if node.op_type == "MatMul":
        return node.domain == ""
    if (node.domain, node.op_type) != ("cuvil", "MatMulInt4"):
        return False
    more = (v for v in node.inputs[2:] if v is not None)
    bare = not any(node.inputs[_BIAS:]) and not ctx.attr(node, "activation", "")
    return bare and all(ctx.is_constant(v) for v in more)


def _quantized(part: Projection) -> list[ir.Value | None]:
    """Scales, zero points and offsets of a quantized weight; nothing for one in floats."""
    return [*part.nodes[0].inputs, None, None, None][2:_BIAS] if part.nodes[0].domain else []


def _product(
    parts: Sequence[Projection], columns: npt.NDArray[np.int64] | None, name: str, ctx: GraphContext
) -> list[ir.Node]:
    """The product of x and all weights next to each other, in another order of columns where one is given."""

    def whole(values: Sequence[ir.Value | None], hint: str) -> ir.Value | None:
        tensors = [_tensor(v, ctx) for v in values if v is not None]
        if not tensors:
            return None
        return ctx.initializer(_side_by_side(tensors, columns), f"{name}_{hint}")

    first = parts[0]
    weight = whole([p.weight for p in parts], "weight")
    node = first.nodes[0]
    result = ir.Value(type=node.outputs[0].type, shape=ir.Shape((*(dims(first.x, ctx) or ())[:-1], _columns(weight))))
    if not node.domain:
        return [ctx.node("MatMul", [first.x, weight], like=result)]
    others = zip(*(_quantized(p) for p in parts), strict=True)
    inputs = [first.x, weight, *(whole(v, h) for v, h in zip(others, ("scales", "zeros", "offsets"), strict=True))]
    dtype = ctx.dtype(node.outputs[0])
    assert dtype is not None
    made, function = make("MatMulInt4", inputs, {"block_size": ctx.attr(node, "block_size")}, ctx, dtype, [result])
    ctx.add_function(function)
    return [made]


def _columns(weight: ir.Value | None) -> int:
    assert weight is not None and weight.shape is not None
    return int(weight.shape.numpy()[-1])


def _biased(
    nodes: list[ir.Node], bias: npt.NDArray[Any], dtype: ir.DataType, name: str, ctx: GraphContext
) -> list[ir.Node]:
    product = nodes[-1].outputs[0]
    added = ctx.initializer(ir.Tensor(np.ascontiguousarray(bias), dtype=dtype), f"{name}_bias")
    return [*nodes, ctx.node("Add", [product, added], like=product)]


def _side_by_side(tensors: Sequence[ir.TensorProtocol], columns: npt.NDArray[np.int64] | None) -> ir.TensorProtocol:
    """Tensors joined along their last axis, in another order of its elements where one is given."""
    shape = [int(d) for d in tensors[0].shape.numpy()]
    shape[-1] = sum(int(t.shape.numpy()[-1]) for t in tensors)

    def compute(arrays: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        joined = np.concatenate(arrays, -1)
        return joined if columns is None else joined[..., columns]

    return _computed(tensors, compute, tuple(shape))


def _computed(
    sources: Sequence[ir.TensorProtocol],
    compute: Callable[[list[npt.NDArray[Any]]], npt.NDArray[Any]],
    shape: tuple[int, ...],
) -> ir.TensorProtocol:
    """A tensor made of others: large ones only when somebody reads it, or a large model would have to fit in memory."""
    dtype = sources[0].dtype

    def make() -> ir.TensorProtocol:
        codes = dtype in CODES
        array = np.ascontiguousarray(compute([codes_of(s) if codes else s.numpy() for s in sources]))
        for source in sources:
            if isinstance(source, ir.ExternalTensor):
                source.release()  # or the whole file of a large model stays mapped
        return code_tensor(array, dtype) if codes else ir.Tensor(array, dtype=dtype)

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
