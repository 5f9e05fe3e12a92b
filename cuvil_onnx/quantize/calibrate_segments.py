"""Cuts a model where statistics are wanted, so that it runs piece by piece.

Each piece computes the inputs of one group of linear layers from what earlier pieces left behind. Only the weights of
one piece and the values that later pieces read are in memory at a time, and weights may change between pieces.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx
import onnx_ir as ir

from cuvil_onnx.errors import UnsupportedModelError
from cuvil_onnx.rewrite import walk

FED_BYTES = 1 << 26
"""Weights from this size on are fed as inputs: a model with all of them inside may pass protobuf's 2 GB."""


@dataclasses.dataclass
class Segment:
    """The nodes that compute `site` from the values of earlier segments.

    Attributes:
        site: the value whose statistics are wanted.
        nodes: in topological order; empty when an earlier segment computes the site, or it is an input.
        inputs: values of earlier segments and graph inputs that the nodes (and the graphs inside them) read.
        outputs: values that later segments read, and the site when it is computed here.
        last_used: values that no later segment reads.
    """

    site: ir.Value
    nodes: list[ir.Node] = dataclasses.field(default_factory=list)
    inputs: list[ir.Value] = dataclasses.field(default_factory=list)
    outputs: list[ir.Value] = dataclasses.field(default_factory=list)
    last_used: list[ir.Value] = dataclasses.field(default_factory=list)


def plan(graph: ir.Graph, sites: Sequence[ir.Value]) -> list[Segment]:
    """One segment for each site, in the order in which the graph computes them.

    Args:
        graph: the main graph, its nodes in topological order.
        sites: values of that graph, not of the graphs inside it.
    """
    position = {node: i for i, node in enumerate(graph)}
    unknown = [s.name for s in sites if s.producer() not in position and not s.is_graph_input()]
    if unknown:
        raise UnsupportedModelError(f"value {unknown[0]!r} is not computed in the main graph: it cannot be observed")

    def order(value: ir.Value) -> int:
        producer = value.producer()
        return -1 if producer is None else position[producer]

    segments, done = [], set[ir.Node]()
    for site in sorted(dict.fromkeys(sites), key=order):
        nodes = _needed(site, done, position)
        done.update(nodes)
        segments.append(Segment(site, sorted(nodes, key=position.__getitem__)))
    for segment in segments:
        made = {value for node in segment.nodes for value in node.outputs}
        read = dict.fromkeys(v for node in segment.nodes for v in operands(node) if not _is_constant(v))
        segment.inputs = [value for value in read if value not in made]
    last: dict[ir.Value, int] = {}
    for i, segment in enumerate(segments):
        last.update(dict.fromkeys((*segment.inputs, segment.site), i))
    for i, segment in enumerate(segments):
        segment.last_used = [value for value, j in last.items() if j == i]
        segment.outputs = [
            v for node in segment.nodes for v in node.outputs if last.get(v, -1) > i or v is segment.site
        ]
    return segments


def operands(node: ir.Node) -> list[ir.Value]:
    """What a node reads, with what the graphs inside it take from outside."""
    found = [value for value in node.inputs if value is not None]
    inner = [graph for body in walk.subgraphs(node) for graph, _ in walk.all_graphs(body)]
    if inner:
        inside = set(inner)
        for graph in inner:
            for value in (*(v for n in graph for v in n.inputs), *graph.outputs):
                if value is not None and value.graph not in inside and value not in found:
                    found.append(value)
    return found


def _is_constant(value: ir.Value) -> bool:
    return value.is_initializer() and not value.is_graph_input()


def _needed(site: ir.Value, done: set[ir.Node], position: dict[ir.Node, int]) -> set[ir.Node]:
    """The nodes not done yet that the site depends on."""
    found: set[ir.Node] = set()
    stack = [site.producer()]
    while stack:
        node = stack.pop()
        if node is None or node in found or node in done or node not in position:
            continue
        found.add(node)
        stack.extend(value.producer() for value in operands(node))
    return found


def model_of(segment: Segment, model: ir.Model, types: dict[ir.Value, str]) -> tuple[onnx.ModelProto, list[ir.Value]]:
    """The segment as a model of its own, and the large weights that it takes as further inputs.

    The site is also given as float32 by the name ``site``, whatever its type.

    Args:
        types: ONNX Runtime's names ("tensor(float16)") of the types of the segment's inputs.
    """
    proto = onnx.ModelProto(ir_version=max(model.ir_version, 4))
    for domain, version in model.graph.opset_imports.items():
        proto.opset_import.add(domain=domain, version=version)
    proto.functions.extend(ir.serde.serialize_function(function) for function in model.functions.values())
    graph = proto.graph
    graph.name = "segment"
    graph.node.extend(ir.serde.serialize_node(node) for node in segment.nodes)
    for value in segment.inputs:
        graph.input.append(_info(value.name or "", types[value]))
    fed = []
    weights = dict.fromkeys(v for node in segment.nodes for v in operands(node) if _is_constant(v))
    for value in weights:
        tensor = value.const_value
        if tensor is None:
            raise UnsupportedModelError(f"initializer {value.name!r} has no values")
        if tensor.nbytes >= FED_BYTES:
            fed.append(value)
            dims = list(tensor.shape.numpy())
            graph.input.append(onnx.helper.make_tensor_value_info(value.name or "", int(tensor.dtype), dims))
        else:
            graph.initializer.append(_serialized(value.name or "", tensor))
    taken = {info.name for info in graph.input} | {name for node in graph.node for name in node.output}
    name = next(n for n in ("site", *(f"site_{i}" for i in range(len(taken) + 1))) if n not in taken)
    graph.node.append(onnx.helper.make_node("Cast", [segment.site.name or ""], [name], to=onnx.TensorProto.FLOAT))
    graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    graph.output.extend(onnx.ValueInfoProto(name=value.name) for value in segment.outputs)
    return proto, fed


def _serialized(name: str, tensor: ir.TensorProtocol) -> onnx.TensorProto:
    proto = onnx.TensorProto(name=name, data_type=int(tensor.dtype), dims=list(tensor.shape.numpy()))
    if tensor.dtype == ir.DataType.STRING:
        proto.string_data.extend(tensor.numpy().reshape(-1).tolist())
    else:
        proto.raw_data = tensor.tobytes()
    return proto


def _info(name: str, kind: str) -> onnx.ValueInfoProto:
    """A graph input of any shape, from ONNX Runtime's name of its type."""
    inner = kind.removeprefix("seq(tensor(").removeprefix("tensor(").rstrip(")")
    names = {"float": "FLOAT", "double": "DOUBLE"}
    element = onnx.TensorProto.DataType.Value(names.get(inner, inner.upper()))
    if kind.startswith("seq("):
        return onnx.helper.make_tensor_sequence_value_info(name, element, None)
    if not kind.startswith("tensor("):
        raise UnsupportedModelError(f"value {name!r} of type {kind} cannot be carried between the pieces of a model")
    return onnx.helper.make_tensor_value_info(name, element, None)
