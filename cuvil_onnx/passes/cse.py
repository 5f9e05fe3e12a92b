"""Merges nodes that compute the same thing (exact)."""

from __future__ import annotations

import struct
from collections.abc import Hashable

import onnx_ir as ir

from cuvil_onnx.passes.base import is_pure
from cuvil_onnx.rewrite.apply import can_take_over, replace_node
from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.trace import Trace

MAX_TENSOR_BYTES = 4096


def eliminate_common_subexpressions(ctx: GraphContext, trace: Trace) -> int:
    """Within each graph the later of two equal nodes goes; random operators and unknown domains are left alone.

    Two equal nodes whose results are both graph outputs stay: the interface needs both names.
    """
    merged = 0
    for graph in ctx.graphs:
        seen: dict[Hashable, ir.Node] = {}
        for node in graph:
            key = _key(node, ctx)
            if key is None:
                continue
            first = seen.setdefault(key, node)
            if first is node or not _mergeable(node, first):
                continue
            if replace_node(node, (), first.outputs, ctx):
                merged += 1
    return merged


def _mergeable(node: ir.Node, first: ir.Node) -> bool:
    return all(
        not old.is_graph_output() or can_take_over(old, new)
        for old, new in zip(node.outputs, first.outputs, strict=True)
    )


def _key(node: ir.Node, ctx: GraphContext) -> Hashable | None:
    """Equal keys mean equal results; None for nodes that must not be merged."""
    if not is_pure(node) or (node.op_identifier() in ctx.model.functions and node.domain != "cuvil"):
        return None
    attributes: list[Hashable] = []
    for name in sorted(node.attributes):
        attr = node.attributes[name]
        value = _attribute(attr)
        if value is None:
            return None
        attributes.append((name, attr.type, value))
    inputs = tuple(id(v) for v in node.inputs)
    absent = tuple(v.name == "" for v in node.outputs)
    return (node.op_identifier(), inputs, tuple(attributes), absent)


def _attribute(attr: ir.Attr) -> Hashable | None:
    """A hashable form in which floats compare by their bits (0.0 is not -0.0)."""
    if attr.is_ref():
        return None
    kind = attr.type
    if kind == ir.AttributeType.FLOAT:
        return struct.pack("<d", attr.as_float())
    if kind == ir.AttributeType.FLOATS:
        return b"".join(struct.pack("<d", f) for f in attr.as_floats())
    if kind in (ir.AttributeType.INT, ir.AttributeType.STRING):
        return str(attr.value)
    if kind in (ir.AttributeType.INTS, ir.AttributeType.STRINGS):
        return tuple(attr.value)
    if kind == ir.AttributeType.TENSOR:
        tensor = attr.as_tensor()
        if tensor.nbytes > MAX_TENSOR_BYTES or tensor.dtype == ir.DataType.STRING:
            return None
        return (tensor.dtype, tuple(tensor.shape.numpy()), tensor.tobytes())
    return None
