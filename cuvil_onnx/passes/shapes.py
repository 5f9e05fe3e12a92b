"""Shape inference with symbolic dimensions through ONNX's own inference, on a copy of the model without its weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import onnx
import onnx_ir as ir

from cuvil_onnx.passes.base import KNOWN_DOMAINS
from cuvil_onnx.passes.serialize import Serializer, tensor
from cuvil_onnx.passes.wire import field, tag
from cuvil_onnx.rewrite import walk
from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.trace import Trace

SMALL_TENSOR_BYTES = 1024
"""Initializers up to this size travel with their values: shapes, axes and pads that inference has to read."""

MAX_SCOPES = 1 << 23
"""ONNX's inference copies what is known of the main graph for each subgraph: with more nodes times subgraphs than this
the model goes through it in parts of ``PART`` nodes."""

PART = 64

GENERATED = "unk__"
"""How the symbols begin that ONNX's inference makes up, numbered from 0 in each call."""

LONG = 1 << 17
"""From this length on, vectors are no shapes: ONNX's inference would list what it knows of each element, once they are
cast (10 GB for 64 Mi of them)."""

_MAKERS = frozenset({"Split", "ConstantOfShape", "Range", "Reshape", "Expand", "Tile"})
"""The ops of nodes that inference may not get to see."""

Fact = tuple[int, tuple[int | str | None, ...] | None]
"""An element type (0: unknown) and dimensions."""


def infer_shapes(ctx: GraphContext, trace: Trace) -> int:
    """Sets element types and shapes of computed values; returns how many became better known.

    Equal symbols mean equal sizes; a size that inference cannot name gets a symbol of its own, which pointwise
    operators hand on. Where inference fails nothing changes.
    """
    hidden: set[str | None] = set()
    for graph in ctx.graphs:
        for node in graph:
            if _is_misread(node, ctx):
                hidden.update(v.name for v in node.outputs)
                for value in node.outputs:
                    value.shape, value.type = None, node.inputs[0].type if node.inputs[0] is not None else None
            elif node.op_type in _MAKERS and (made := _long_vector(node, ctx)) is not None:
                hidden.add(node.outputs[0].name)
                node.outputs[0].type, node.outputs[0].shape = made
            for value in node.outputs:
                if value.type is None:
                    value.shape = None  # no proto can say a shape without a type
    graph = ctx.model.graph
    if len(graph) * (len(ctx.graphs) - 1) <= MAX_SCOPES:
        return _infer(weightless_proto(ctx.model), list(graph), hidden, trace)
    nodes, changed = list(graph), 0
    for start in range(0, len(nodes), PART):
        part = nodes[start : start + PART]
        proto = _part(part, ctx)
        changed += _infer(proto, part, hidden, trace, f"{GENERATED}{start}_", _symbols(proto))
    return changed


def _infer(
    proto: onnx.ModelProto,
    nodes: Sequence[ir.Node],
    hidden: set[str | None],
    trace: Trace,
    prefix: str = "",
    given: frozenset[str] = frozenset(),
) -> int:
    """Learns what inference says of the results of ``nodes``, from a proto that begins with them.

    With a ``prefix``, made-up symbols that were not ``given`` get it, to differ from those of other calls.
    """
    levels = list(_levels(nodes))
    nested = len(levels) > 1  # else no attribute of the protos needs to be looked at
    graphs = list(walk_protos(proto.graph)) if nested else [proto.graph]
    if hidden:
        _hide_nodes(proto, graphs, hidden)
    for stripped in graphs:
        for info in stripped.output:
            if info.type.HasField("tensor_type"):
                info.type.tensor_type.ClearField("shape")
    lengths = _hide_long(proto, graphs)
    try:
        inferred = onnx.shape_inference.infer_shapes(proto, check_type=False, strict_mode=False, data_prop=True)
    except Exception as error:
        trace.warn(f"shape inference failed: {' '.join(str(error).split())[:200]}")
        return 0
    changed = 0
    decoded: dict[bytes, Fact | None] = {}
    found = walk_protos(inferred.graph) if nested else [inferred.graph]
    for members, described in zip(levels, found, strict=True):
        facts: dict[str, Fact] = {}
        for info in (*described.value_info, *described.output):
            data = info.type.SerializeToString()
            if data not in decoded:
                fact = _fact(info.type, lengths)
                decoded[data] = _renamed(fact, prefix, given) if fact is not None and prefix else fact
            fact = decoded[data]
            if fact is not None:
                facts[info.name] = fact
        for node in members:
            for value in node.outputs:
                fact = facts.get(value.name or "")
                if fact is not None:
                    changed += _learn(value, *fact, keep=node.domain not in KNOWN_DOMAINS)
    return changed


def _levels(nodes: Sequence[ir.Node]) -> Iterator[Iterable[ir.Node]]:
    """The nodes, then those of each subgraph below them, in the order of ``walk_protos``."""
    pending: list[Iterable[ir.Node]] = [nodes]
    for members in pending:
        yield members
        for node in members:
            if node.attributes:
                pending.extend(walk.subgraphs(node))


def _is_misread(node: ir.Node, ctx: GraphContext) -> bool:
    """Split by sizes that are not constant: ONNX's inference takes it for a split into equal parts."""
    return (
        node.op_type == "Split"
        and not node.domain
        and len(node.inputs) > 1
        and node.inputs[1] is not None
        and not ctx.is_constant(node.inputs[1])
    )


def _long_vector(node: ir.Node, ctx: GraphContext) -> tuple[ir.TypeProtocol | None, ir.Shape] | None:
    """Type and shape of the long vector that a node makes of little, or of something that is none."""
    first = node.inputs[0] if node.inputs else None
    kind = first.type if first is not None else None
    length: float = 0
    if node.op_type == "Range" and len(node.inputs) == 3:
        start, limit, delta = (ctx.constant(v) for v in node.inputs)
        if start is not None and limit is not None and delta is not None and start.size == limit.size == 1:
            steps = float((limit - start).item()) / (float(delta.item()) or math.inf)  # the difference in the own type
            length = math.ceil(steps) if math.isfinite(steps) else 0
    elif node.op_type == "ConstantOfShape":
        sizes, value = ctx.ints(first), ctx.attr(node, "value")
        kind = ir.TensorType(value.dtype if value is not None else ir.DataType.FLOAT)
        length = sizes[0] if sizes is not None and len(sizes) == 1 else 0
    elif node.op_type in ("Reshape", "Expand", "Tile") and len(node.inputs) == 2:
        sizes, given = ctx.ints(node.inputs[1]), ctx.static_shape(first)
        if sizes is not None and len(sizes) == 1:
            elements = math.prod(given) if given is not None else 0
            length = sizes[0] * (elements if node.op_type == "Tile" else 1)
            if length < 0 or (node.op_type == "Expand" and given is not None and len(given) == 1):
                length = max(length, elements)
            if node.op_type != "Reshape" and ctx.rank(first) not in (0, 1):
                length = 0  # no vector, or unknown
    return (kind, ir.Shape([int(length)])) if kind is not None and LONG <= length < 2**63 else None


def _hide_nodes(proto: onnx.ModelProto, graphs: Sequence[onnx.GraphProto], results: set[str | None]) -> None:
    """Moves the nodes with these results to a domain that inference does not know."""
    proto.opset_import.append(onnx.helper.make_opsetid("cuvil.hidden", 1))
    for graph in graphs:
        for node in graph.node:
            if node.op_type in _MAKERS and results.intersection(node.output):
                node.domain = "cuvil.hidden"


def _hide_long(proto: onnx.ModelProto, graphs: Sequence[onnx.GraphProto]) -> dict[str, int]:
    """Puts symbols in place of the lengths of long vectors; returns what they stand for."""
    lengths: dict[str, int] = {}
    taken: frozenset[str] | None = None
    for graph in graphs:
        for info in (*graph.input, *graph.value_info):
            dims = info.type.tensor_type.shape.dim
            if len(dims) == 1 and (length := dims[0].dim_value) >= LONG:
                taken = _symbols(proto) if taken is None else taken
                symbol = f"length{length}"
                while symbol in taken:
                    symbol += "_"
                dims[0].dim_param = symbol
                lengths[symbol] = length
    return lengths


def weightless_proto(model: ir.Model) -> onnx.ModelProto:
    """The model with large initializers of the main graph turned into inputs (types and shapes only)."""
    graph = model.graph
    small = [v for v in graph.initializers.values() if v.const_value is not None and not _is_large(v.const_value)]
    proto = _with_graph(model, Serializer(model.ir_version, _without_data).graph(graph, small))
    known = {v.name for v in graph.inputs}
    for value in graph.initializers.values():
        held = value.const_value
        if held is not None and _is_large(held) and value.name not in known:
            dims = list(held.shape.numpy())
            proto.graph.input.append(onnx.helper.make_tensor_value_info(value.name or "", int(held.dtype), dims))
    return proto


def _part(nodes: Sequence[ir.Node], ctx: GraphContext) -> onnx.ModelProto:
    """A model of some nodes of the main graph; what they read is its input."""
    members = set(nodes)
    read: dict[ir.Value, None] = {}
    for level in _levels(nodes):
        for node in level:
            read.update((v, None) for v in node.inputs if v is not None and v.graph is ctx.model.graph)
    outside = [v for v in read if v.producer() not in members]
    held = [v for v in outside if v.is_initializer() and v.const_value is not None and not _is_large(v.const_value)]
    return _with_graph(ctx.model, Serializer(ctx.model.ir_version, _without_data).part(nodes, outside, held))


def _with_graph(model: ir.Model, graph: bytes) -> onnx.ModelProto:
    """A ModelProto of ``model`` with this graph."""
    proto = onnx.ModelProto(ir_version=model.ir_version)
    for domain, version in model.opset_imports.items():
        proto.opset_import.add(domain=domain, version=version)
    proto.functions.extend(ir.serde.serialize_function(f) for f in model.functions.values())
    proto.MergeFromString(field(tag(onnx.ModelProto.GRAPH_FIELD_NUMBER), graph))
    return proto


def _is_large(held: ir.TensorProtocol) -> bool:
    return held.dtype != ir.DataType.STRING and held.nbytes > SMALL_TENSOR_BYTES


def _without_data(value: ir.Value) -> bytes:
    """The TensorProto of an initializer; a large one refers to a file that does not exist."""
    held = value.const_value
    assert held is not None
    name = value.name or ""
    if _is_large(held):
        held = ir.ExternalTensor("-", 0, held.nbytes, held.dtype, shape=ir.Shape(held.shape.numpy()), name=name)
    elif isinstance(held, ir.ExternalTensor):  # of a file: only its values, not where they are, are of use
        held = ir.Tensor(held.numpy(), dtype=held.dtype, name=name)
    return tensor(held, name)


def _symbols(proto: onnx.ModelProto) -> frozenset[str]:
    """The names of sizes in a model."""
    infos = (info for g in walk_protos(proto.graph) for info in (*g.input, *g.value_info))
    return frozenset(d.dim_param for info in infos for d in info.type.tensor_type.shape.dim if d.dim_param)


def _renamed(fact: Fact, prefix: str, given: frozenset[str]) -> Fact:
    elem_type, dims = fact
    if dims is None:
        return fact
    made = [isinstance(d, str) and d.startswith(GENERATED) and d not in given for d in dims]
    return elem_type, tuple(f"{prefix}{d}" if m else d for d, m in zip(dims, made, strict=True))


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


def _fact(described: onnx.TypeProto, lengths: dict[str, int]) -> Fact | None:
    """What a type says of a tensor; ``lengths`` are symbols that stand for numbers."""
    if not described.HasField("tensor_type"):
        return None
    kind = described.tensor_type
    if not kind.HasField("shape"):
        return kind.elem_type, None
    return kind.elem_type, tuple(
        d.dim_value if d.HasField("dim_value") else lengths.get(d.dim_param, d.dim_param or None)
        for d in kind.shape.dim
    )


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
