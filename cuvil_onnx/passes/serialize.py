"""The bytes of a graph as onnx-ir would write them, in a quarter of the time.

Most of a graph is said again and again: the same attributes, types and shapes. Each is encoded once; the rest is names.
What is rare goes through onnx-ir.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Iterable, Sequence

import onnx
import onnx_ir as ir

from cuvil_onnx.passes.wire import field, tag, text, varint

_ANNOTATION = "quant_parameter_tensor_names"
"""Where onnx-ir keeps a value's quantization annotation."""

# Fields by their names in onnx.proto.
_NODE_INPUT, _NODE_OUTPUT, _NODE_NAME, _NODE_OP, _NODE_ATTRIBUTE = (tag(n) for n in (1, 2, 3, 4, 5))
_NODE_DOC, _NODE_DOMAIN, _NODE_OVERLOAD, _NODE_METADATA = (tag(n) for n in (6, 7, 8, 9))
_GRAPH_NODE, _GRAPH_NAME, _GRAPH_INITIALIZER, _GRAPH_DOC = (tag(n) for n in (1, 2, 5, 10))
_GRAPH_INPUT, _GRAPH_OUTPUT, _GRAPH_VALUE_INFO, _GRAPH_ANNOTATION, _GRAPH_METADATA = (
    tag(n) for n in (11, 12, 13, 14, 16)
)
_INFO_NAME, _INFO_TYPE = tag(1), tag(2)
_ATTRIBUTE_NAME, _ATTRIBUTE_GRAPH, _ATTRIBUTE_GRAPHS, _ATTRIBUTE_DOC = (tag(n) for n in (1, 6, 11, 13))
_ATTRIBUTE_TYPE = varint(20 << 3)
_ENTRY_KEY, _ENTRY_VALUE = tag(1), tag(2)


class Serializer:
    """Writes graphs, and remembers what it has written.

    Args:
        ir_version: of the model, which decides what onnx-ir writes of rare fields.
        tensor: writes an initializer as TensorProto.
    """

    def __init__(self, ir_version: int, tensor: Callable[[ir.Value], bytes]) -> None:
        self._ir_version = ir_version
        self._tensor = tensor
        self._attributes: dict[Hashable, bytes] = {}
        self._types: dict[Hashable, bytes] = {}
        self._inputs: dict[str, bytes] = {}

    def graph(self, graph: ir.Graph, held: Iterable[ir.Value] | None = None) -> bytes:
        """A GraphProto with the initializers ``held``, by default all."""
        if held is None:
            held = (v for v in graph.initializers.values() if v.const_value is not None)
        inputs = {v.name for v in graph.inputs}
        infos, annotated = [], [v for v in graph.inputs if v.name not in graph.initializers]
        for value in graph.initializers.values():
            annotated.append(value)
            if value.name not in inputs:
                infos.append(self.value_info(value))
        nodes = []
        for node in graph:
            nodes.append(field(_GRAPH_NODE, self.node(node)))
            for value in node.outputs:
                if not value.is_graph_output():
                    annotated.append(value)
                    infos.append(self.value_info(value))
        annotated.extend(graph.outputs)
        return b"".join(
            [
                *nodes,
                text(_GRAPH_NAME, graph.name or ""),
                *(field(_GRAPH_INITIALIZER, self._tensor(value)) for value in held),
                text(_GRAPH_DOC, graph.doc_string or ""),
                *(field(_GRAPH_INPUT, self._interface(v)) for v in graph.inputs),
                *(field(_GRAPH_OUTPUT, self._interface(v)) for v in graph.outputs),
                *(field(_GRAPH_VALUE_INFO, info) for info in infos if info),
                *(field(_GRAPH_ANNOTATION, a) for v in annotated if v._metadata and (a := _annotation(v))),
                *_entries(_GRAPH_METADATA, graph.metadata_props if graph._metadata_props else {}),
            ]
        )

    def part(self, nodes: Sequence[ir.Node], inputs: Iterable[ir.Value], held: Iterable[ir.Value]) -> bytes:
        """A GraphProto of some nodes of a graph, with what is known of their results.

        Args:
            nodes: in topological order.
            inputs: the values that they and their subgraphs read.
            held: initializers that they read.
        """
        results = [v for node in nodes for v in node.outputs]
        return b"".join(
            [
                *(field(_GRAPH_NODE, self.node(node)) for node in nodes),
                *(field(_GRAPH_INITIALIZER, self._tensor(value)) for value in held),
                *(field(_GRAPH_INPUT, info) for value in inputs if (info := self.value_info(value))),
                *(field(_GRAPH_VALUE_INFO, info) for value in results if (info := self.value_info(value))),
            ]
        )

    def node(self, node: ir.Node) -> bytes:
        """A NodeProto."""
        if node.device_configurations:
            proto = onnx.NodeProto()
            ir.serde.serialize_node_into(proto, node, model_ir_version=self._ir_version)
            return _message(proto)
        parts, inputs = [], self._inputs
        for value in node.inputs:
            name = "" if value is None else _name(value)
            known = inputs.get(name)
            if known is None:
                known = inputs[name] = field(_NODE_INPUT, name.encode())
            parts.append(known)
        outputs = node.outputs
        while outputs and not outputs[-1].name:
            outputs = outputs[:-1]
        for value in outputs:
            parts.append(field(_NODE_OUTPUT, _name(value).encode()))
        if node.name:
            parts.append(text(_NODE_NAME, node.name))
        parts.append(text(_NODE_OP, node.op_type))
        for attr in node.attributes.data.values():
            parts.append(field(_NODE_ATTRIBUTE, self._attribute(attr)))
        if node.doc_string:
            parts.append(text(_NODE_DOC, node.doc_string))
        if node.domain or node.overload:
            parts.append(text(_NODE_DOMAIN, node.domain) + text(_NODE_OVERLOAD, node.overload))
        if node._metadata_props:
            parts.extend(_entries(_NODE_METADATA, node._metadata_props))
        return b"".join(parts)

    def value_info(self, value: ir.Value) -> bytes:
        """A ValueInfoProto; nothing when there is nothing to say."""
        name, type_, shape = value.name, value.type, value.shape
        noted = bool(value._metadata_props or value.doc_string)
        if not name or (type_ is None and shape is None and not noted):
            return b""
        plain = type(type_) is ir.TensorType and not type_.denotation and not noted
        if not plain or (shape is not None and any(map(shape.get_denotation, range(len(shape))))):
            return _message(ir.serde.serialize_value(value))
        key = value.dtype, None if shape is None else shape.dims
        known = self._types.get(key)
        if known is None:
            known = self._types[key] = field(_INFO_TYPE, _message(ir.serde.serialize_value(value).type))
        return field(_INFO_NAME, name.encode()) + known

    def _interface(self, value: ir.Value) -> bytes:
        """The ValueInfoProto of an input or output, which is written even when there is nothing to say but its name."""
        return self.value_info(value) or _message(ir.serde.serialize_value(value))

    def _attribute(self, attr: ir.Attr) -> bytes:
        """An AttributeProto."""
        kind = attr.type
        if kind == ir.AttributeType.GRAPH and not attr.is_ref():
            return self._graphs(attr, _ATTRIBUTE_GRAPH, (attr.as_graph(),))
        if kind == ir.AttributeType.GRAPHS and not attr.is_ref():
            return self._graphs(attr, _ATTRIBUTE_GRAPHS, attr.as_graphs())
        key = None if attr.doc_string or attr.is_ref() else attribute_key(attr)
        known = None if key is None else self._attributes.get(key)
        if known is None:
            known = _message(ir.to_proto(attr))
            if key is not None:
                self._attributes[key] = known
        return known

    def _graphs(self, attr: ir.Attr, start: bytes, graphs: Sequence[ir.Graph]) -> bytes:
        written = [field(start, self.graph(graph)) for graph in graphs]
        kind = _ATTRIBUTE_TYPE + varint(attr.type.value)
        return b"".join([text(_ATTRIBUTE_NAME, attr.name), *written, text(_ATTRIBUTE_DOC, attr.doc_string or ""), kind])


def tensor(held: ir.TensorProtocol, name: str) -> bytes:
    """The TensorProto of an initializer of that name."""
    held.name = name
    return _message(ir.serde.serialize_tensor(held))


def attribute_key(attr: ir.Attr) -> Hashable | None:
    """Attributes with equal keys are equal to the last bit (0.0 is not -0.0); None for tensors, graphs and types."""
    kind, value = attr.type, attr.value
    if kind == ir.AttributeType.FLOAT:
        return attr.name, kind, struct.pack("<d", value)
    if kind == ir.AttributeType.FLOATS:
        return attr.name, kind, struct.pack(f"<{len(value)}d", *value)
    if kind in (ir.AttributeType.INT, ir.AttributeType.STRING):
        return attr.name, kind, value
    if kind in (ir.AttributeType.INTS, ir.AttributeType.STRINGS):
        return attr.name, kind, tuple(value)
    return None


def _name(value: ir.Value) -> str:
    if value.name is None:
        raise ValueError("a value has no name")
    return value.name


def _annotation(value: ir.Value) -> bytes:
    """A TensorAnnotation; nothing for a value without."""
    names = value.meta.get(_ANNOTATION)
    if not names:
        return b""
    proto = onnx.TensorAnnotation(tensor_name=value.name)
    for key in sorted(names):
        proto.quant_parameter_tensor_names.add(key=key, value=names[key])
    return _message(proto)


def _entries(start: bytes, props: dict[str, str]) -> list[bytes]:
    """StringStringEntryProtos; empty texts are written, as they are when set."""
    return [
        field(start, field(_ENTRY_KEY, key.encode()) + field(_ENTRY_VALUE, props[key].encode()))
        for key in sorted(props)
    ]


def _message(proto: object) -> bytes:
    data: bytes = proto.SerializeToString(deterministic=True)  # type: ignore[attr-defined]
    return data
