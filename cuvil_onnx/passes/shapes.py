"""Shape inference with symbolic dimensions through ONNX's own inference, on a copy of the model without its weights."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
import onnx_ir as ir

from cuvil_onnx.passes.base import KNOWN_DOMAINS
from cuvil_onnx.rewrite import walk
from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.trace import Trace

SMALL_TENSOR_BYTES = 1024
"""Initializers up to this size travel with their values: shapes, axes and pads that inference has to read."""

Facts = dict[str, tuple[int, tuple[int | str | None, ...] | None]]


def infer_shapes(ctx: GraphContext, trace: Trace) -> int:
    """Sets element types and shapes of computed values; returns how many became better known.

    Equal symbols mean equal sizes; a size that inference cannot name gets a symbol of its own, which pointwise
    operators hand on. Where inference fails nothing changes.
    """
    for graph in ctx.graphs:
        for node in graph:
            if _is_misread(node, ctx):
                for value in node.outputs:
                    value.shape, value.type = None, node.inputs[0].type if node.inputs[0] is not None else None
            for value in node.outputs:
                if value.type is None:
                    value.shape = None  # no proto can say a shape without a type
    proto = weightless_proto(ctx.model)
    _hide_misread(proto, ctx)
    for stripped in walk_protos(proto.graph):
        for info in stripped.output:
            if info.type.HasField("tensor_type"):
                info.type.tensor_type.ClearField("shape")
    try:
        inferred = onnx.shape_inference.infer_shapes(proto, check_type=False, strict_mode=False, data_prop=True)
    except Exception as error:
        trace.warn(f"shape inference failed: {' '.join(str(error).split())[:200]}")
        return 0
    changed = 0
    for (graph, _), described in zip(walk.all_graphs(ctx.model.graph), walk_protos(inferred.graph), strict=True):
        facts = _facts(described)
        for node in graph:
            for value in node.outputs:
                if value.name and value.name in facts:
                    changed += _learn(value, *facts[value.name], keep=node.domain not in KNOWN_DOMAINS)
    return changed


def _is_misread(node: ir.Node, ctx: GraphContext) -> bool:
    """Split by sizes that are not constant: ONNX's inference takes it for a split into equal parts."""
    return (
        node.op_type == "Split"
        and not node.domain
        and len(node.inputs) > 1
        and node.inputs[1] is not None
        and not ctx.is_constant(node.inputs[1])
    )


def _hide_misread(proto: onnx.ModelProto, ctx: GraphContext) -> None:
    """Moves those nodes to a domain that inference does not know."""
    hidden = {v.name for g in ctx.graphs for n in g if _is_misread(n, ctx) for v in n.outputs}
    if not hidden:
        return
    proto.opset_import.append(onnx.helper.make_opsetid("cuvil.hidden", 1))
    for graph in walk_protos(proto.graph):
        for node in graph.node:
            if node.op_type == "Split" and hidden.intersection(node.output):
                node.domain = "cuvil.hidden"


def weightless_proto(model: ir.Model) -> onnx.ModelProto:
    """The model with large initializers of the main graph turned into inputs (types and shapes only)."""
    swapped: list[tuple[ir.Value, ir.TensorProtocol]] = []
    for graph, _ in walk.all_graphs(model.graph):
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is None or tensor.dtype == ir.DataType.STRING:
                continue
            if tensor.nbytes > SMALL_TENSOR_BYTES or isinstance(tensor, ir.ExternalTensor):
                swapped.append((value, tensor))
    try:
        for value, tensor in swapped:
            if tensor.nbytes <= SMALL_TENSOR_BYTES:  # of a file: only its values, not where they are, are of use
                value.const_value = ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=value.name)
                continue
            value.const_value = ir.ExternalTensor(
                "-", 0, tensor.nbytes, tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=value.name or ""
            )
        proto = ir.to_proto(model)
    finally:
        for value, tensor in swapped:
            value.const_value = tensor
    large = [t for t in proto.graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL]
    small = [t for t in proto.graph.initializer if t.data_location != onnx.TensorProto.EXTERNAL]
    known = {info.name for info in proto.graph.input}
    for tensor in large:
        if tensor.name not in known:
            proto.graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            )
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(small)
    return proto


def walk_protos(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """The graph and every subgraph, in the order of ``walk.all_graphs``."""
    pending = [graph]
    i = 0
    while i < len(pending):
        yield pending[i]
        for node in pending[i].node:
            for attr in node.attribute:
                if attr.type == onnx.AttributeProto.GRAPH:
                    pending.append(attr.g)
                elif attr.type == onnx.AttributeProto.GRAPHS:
                    pending.extend(attr.graphs)
        i += 1


def _facts(graph: onnx.GraphProto) -> Facts:
    facts: Facts = {}
    for info in (*graph.value_info, *graph.output):
        if not info.type.HasField("tensor_type"):
            continue
        tensor = info.type.tensor_type
        dims = None
        if tensor.HasField("shape"):
            dims = tuple(d.dim_value if d.HasField("dim_value") else (d.dim_param or None) for d in tensor.shape.dim)
        facts[info.name] = (tensor.elem_type, dims)
    return facts


def _learn(value: ir.Value, elem_type: int, dims: tuple[int | str | None, ...] | None, keep: bool) -> int:
    """Takes over what was inferred; returns 1 when a size or type is known now that was not."""
    changed = 0
    if elem_type and (value.type is None or value.dtype in (None, ir.DataType.UNDEFINED)):
        value.type = ir.TensorType(ir.DataType(elem_type))
        changed = 1
    if dims is None:
        return changed
    old = value.shape
    if old is not None and (keep or len(old) != len(dims)):
        return changed
    merged = list(dims)
    if old is not None:
        for i, known in enumerate(old):
            if isinstance(known, int) and not isinstance(dims[i], int):
                merged[i] = known
    if old is None or [d if isinstance(d, int) else d.value for d in old] != merged:
        value.shape = ir.Shape(merged)
        changed = 1
    return changed
