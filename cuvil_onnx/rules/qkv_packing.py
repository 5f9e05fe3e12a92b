"""Computes queries, keys and values in one product.

Before: cuvil::Attention(x Wq + bq, x Wk + bk, x Wv + bv), constant weights, biases optional.
After:  cuvil::Attention(x [Wq Wk Wv] + [bq bk bv]), layout "packed".
Exactness: rounding; the larger product may sum in another order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.pattern import operands
from cuvil_onnx.rewrite.rule import Exactness, Match, Phase, Refusal, Replacement, Rule
from cuvil_onnx.rules._common import dims, make, vector


@dataclass(frozen=True)
class _Projection:
    x: ir.Value
    weight: ir.Value
    bias: ir.Value | None
    nodes: tuple[ir.Node, ...]


class QkvPacking(Rule):
    """See the module's text."""

    name = "qkv_packing"
    phase = Phase.STRUCTURAL
    exactness = Exactness.ROUNDING
    roots = (("cuvil", "Attention"),)

    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        if ctx.attr(node, "layout") != "separate":
            return None
        parts = [_projection(v, ctx) for v in node.inputs[:3]]
        found = [p for p in parts if p is not None]
        if len(found) != 3:
            return None
        first = found[0]
        if any(p.x is not first.x for p in found):
            return Refusal("queries, keys and values are projected from different tensors", node)
        if any(dims(p.weight, ctx) != dims(first.weight, ctx) for p in found):
            return Refusal("the weights have different shapes", node)
        for value, part in zip(node.inputs[:3], found, strict=True):
            if value is None or ctx.single_user(value) is not node or ctx.use_count(part.nodes[0].outputs[0]) != 1:
                return Refusal("a projection is read elsewhere too", value)
        nodes = [node, *(n for p in found for n in p.nodes)]
        values = {"x": first.x, "mask": node.inputs[3] if len(node.inputs) > 3 else None}
        return Match(node, nodes, outputs=node.outputs, values=values, attrs={"parts": found})

    def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
        node, parts = match.root, match.attrs["parts"]
        x = match.values["x"]
        dtype = ctx.dtype(x)
        assert x is not None and dtype is not None
        weight = ctx.initializer(_tensor([_array(p.weight, ctx) for p in parts], 1, dtype), "qkv_weight")
        product = ctx.node("MatMul", [x, weight])
        shape = (*(dims(x, ctx) or ())[:-1], 3 * _array(parts[0].weight, ctx).shape[1])
        product.outputs[0].type, product.outputs[0].shape = ir.TensorType(dtype), ir.Shape(shape)
        nodes = [product]
        if any(p.bias is not None for p in parts):
            size = _array(parts[0].weight, ctx).shape[1]
            zeros = np.zeros(size, dtype.numpy())
            rows = [zeros if p.bias is None else _array(p.bias, ctx).reshape(-1) for p in parts]
            bias = ctx.initializer(_tensor(rows, 0, dtype), "qkv_bias")
            nodes.append(ctx.node("Add", [product.outputs[0], bias], like=product.outputs[0]))
        attrs = {name: ctx.attr(node, name) for name in ("num_heads", "scale", "causal")} | {"layout": "packed"}
        inputs = [nodes[-1].outputs[0], None, None, match.values["mask"]]
        fused, function = make("Attention", inputs, attrs, ctx, dtype, match.outputs)
        return Replacement((*nodes, fused), fused.outputs, (function,))


def _projection(value: ir.Value | None, ctx: GraphContext) -> _Projection | None:
    """x W + b with constant W and b."""
    node = ctx.producer(value)
    if node is None:
        return None
    if node.op_type == "MatMul" and node.domain == "":
        x, weight = node.inputs
        if x is None or weight is None or ctx.rank(weight) != 2 or not ctx.is_constant(weight):
            return None
        return _Projection(x, weight, None, (node,))
    if node.op_type != "Add" or node.domain != "":
        return None
    for product, bias in operands(node):
        inner = _projection(product, ctx) if ctx.producer(product, "MatMul") is not None else None
        if inner is None or not ctx.is_constant(bias):
            continue
        if vector(bias, (dims(inner.weight, ctx) or (None,))[-1], ctx, rank=ctx.rank(product)):
            return _Projection(inner.x, inner.weight, bias, (*inner.nodes, node))
    return None


def _array(value: ir.Value, ctx: GraphContext) -> np.ndarray:
    array = ctx.constant(value, max_elements=None)
    assert array is not None
    return array


def _tensor(arrays: list[np.ndarray], axis: int, dtype: ir.DataType) -> ir.TensorProtocol:
    return ir.Tensor(np.ascontiguousarray(np.concatenate(arrays, axis)), dtype=dtype)
