"""Lets convolutions work on [N, H, W, C] tensors (exact up to the order of sums inside a convolution).

Tensor cores want channels innermost. Regions of 2-D convolutions, pools, elementwise operators and channel
concatenations are rewritten to NHWC as a whole, with one transpose per value that enters or leaves the region:

Before: x -> Conv -> Relu -> MaxPool -> Conv -> y
After:  x -> Transpose -> FusedConv(NHWC) -> Relu -> Pool(NHWC) -> FusedConv(NHWC) -> Transpose -> y
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from cuvil_onnx.passes.base import Pass
from cuvil_onnx.passes.nhwc_nodes import TO_NCHW, TO_NHWC, Builder, is_candidate
from cuvil_onnx.rewrite.apply import detach
from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.provenance import origins, stamp
from cuvil_onnx.rewrite.rule import Exactness
from cuvil_onnx.rewrite.trace import Trace

HALF = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def nhwc_pass(force: bool) -> Pass:
    """The pass; with ``force`` for every float type and every region, else for 16-bit ones that are worth it."""
    return Pass("nhwc_layout", Exactness.ROUNDING, lambda ctx, trace: _convert(ctx, trace, force))


def _convert(ctx: GraphContext, trace: Trace, force: bool) -> int:
    types = (*HALF, ir.DataType.FLOAT) if force else HALF
    converted = 0
    for region in _regions([n for n in ctx.model.graph if is_candidate(n, types, ctx)]):
        convolutions = sum(n.op_type in ("Conv", "FusedConv") for n in region)
        border = _border(region, ctx)
        if not convolutions:
            continue
        if not force and border > convolutions:
            trace.add_refused(
                "nhwc_layout", region[0], f"{border} transposes for {convolutions} convolutions are not worth it", None
            )
            continue
        _rewrite(region, ctx)
        converted += convolutions
    ctx.order.invalidate()
    return converted


def _regions(candidates: Sequence[ir.Node]) -> list[list[ir.Node]]:
    """Connected components of the candidates, each in graph order (union-find over the values between them)."""
    parent: dict[ir.Node, ir.Node] = {n: n for n in candidates}

    def root(node: ir.Node) -> ir.Node:
        while parent[node] is not node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for node in candidates:
        for value in node.inputs:
            producer = None if value is None else value.producer()
            if producer in parent:
                parent[root(node)] = root(producer)
    groups: dict[ir.Node, list[ir.Node]] = {}
    for node in candidates:
        groups.setdefault(root(node), []).append(node)
    return list(groups.values())


def _border(region: Sequence[ir.Node], ctx: GraphContext) -> int:
    """How many values enter or leave the region and would be transposed."""
    members = set(region)
    values: set[ir.Value] = set()
    for node in region:
        moving = (v for v in node.inputs if v is not None and ctx.rank(v) == 4 and not ctx.is_constant(v))
        values.update(v for v in moving if v.producer() not in members)
        result = node.outputs[0]
        if result.is_graph_output() or any(u not in members for u in ctx.users(result)):
            values.add(result)
    return len(values)


def _rewrite(region: Sequence[ir.Node], ctx: GraphContext) -> None:
    graph = ctx.model.graph
    members = set(region)
    builder = Builder(ctx)
    for node in region:
        for value in node.inputs:
            if value is not None and ctx.rank(value) == 4 and not ctx.is_constant(value) and value not in builder.nhwc:
                _enter(value, builder, ctx)
        new, function = builder.build(node)
        if function is not None:
            ctx.add_function(function)
        stamp((new,), origins((node,)), "nhwc_layout")
        graph.insert_after(node, new)
        old, made = node.outputs[0], new.outputs[0]
        made.name = made.name or ctx.fresh_name(f"{old.name}_nhwc")
        made.type = old.type
        made.shape = permuted(old.shape, TO_NHWC)
        builder.nhwc[old] = made
        if old.is_graph_output() or any(u not in members for u in ctx.users(old)):
            _leave(old, made, new, members, ctx)
    detach(region)
    graph.remove(region)


def _enter(value: ir.Value, builder: Builder, ctx: GraphContext) -> None:
    """Transposes a value from outside, once, right behind its producer."""
    graph = ctx.model.graph
    node = ctx.node("Transpose", [value], {"perm": list(TO_NHWC)}, like=value, name=f"{value.name}_to_nhwc")
    node.outputs[0].shape = permuted(value.shape, TO_NHWC)
    node.metadata_props["cuvil.rule"] = "nhwc_layout"
    producer = value.producer()
    if producer is not None and producer.graph is graph:
        graph.insert_after(producer, node)
    else:
        graph.insert_before(graph[0], node)
    builder.nhwc[value] = node.outputs[0]


def _leave(old: ir.Value, made: ir.Value, behind: ir.Node, members: set[ir.Node], ctx: GraphContext) -> None:
    """Gives readers outside of the region the value as it was; a [N, C, 1, 1] value needs no data movement for that."""
    shape = ctx.shape(old)
    channels = None if shape is None or shape[2:] != (1, 1) else shape[1]
    if isinstance(channels, int):
        target = ctx.initializer(_int64([0, channels, 1, 1]), "nchw_shape")
        node = ctx.node("Reshape", [made, target], like=old)
    else:
        node = ctx.node("Transpose", [made], {"perm": list(TO_NCHW)}, like=old, name=f"{old.name}_to_nchw")
    node.metadata_props["cuvil.rule"] = "nhwc_layout"
    graph = ctx.model.graph
    graph.insert_after(behind, node)
    result = node.outputs[0]
    for user, index in old.uses():
        if user not in members:
            user.replace_input_with(index, result)
    name = old.name
    old.name = ctx.fresh_name(f"{name}_replaced")
    result.name = name
    if old.is_graph_output():
        for i, output in enumerate(graph.outputs):
            if output is old:
                graph.outputs[i] = result


def permuted(shape: ir.Shape | None, perm: Sequence[int]) -> ir.Shape | None:
    """The dimensions in another order."""
    return None if shape is None else ir.Shape([shape[i] for i in perm])


def _int64(numbers: Sequence[int]) -> ir.TensorProtocol:
    return ir.Tensor(np.array(numbers, np.int64))
