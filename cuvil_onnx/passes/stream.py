"""Writes a model file weight by weight, so that the weights are not in memory once more, and again as bytes."""

from __future__ import annotations

from typing import IO

import onnx
import onnx_ir as ir

from cuvil_onnx.passes.in_file import InFile
from cuvil_onnx.passes.serialize import Serializer, tensor
from cuvil_onnx.passes.wire import tag, varint

STREAMED_BYTES = 1 << 16
"""Smaller tensors are serialised with the rest."""

GRAPH = tag(onnx.ModelProto.GRAPH_FIELD_NUMBER)
INITIALIZER = tag(onnx.GraphProto.INITIALIZER_FIELD_NUMBER)
RAW_DATA = tag(onnx.TensorProto.RAW_DATA_FIELD_NUMBER)


def stream_model(model: ir.Model, file: IO[bytes]) -> None:
    """Writes ``model`` as the bytes of one ModelProto.

    The fields of a message may come in any order: the graph's initializers follow its other fields.
    """
    rest = Serializer(model.ir_version, _whole).graph(model.graph, ())
    heads: list[tuple[bytes, ir.TensorProtocol | None]] = []
    for value in model.graph.initializers.values():
        held = value.const_value
        if held is not None:
            heads.append((_head(value), held) if _is_streamed(held) else (_whole(value), None))
    sizes = [len(head) + (0 if held is None else held.nbytes) for head, held in heads]
    file.write(_around(model).SerializeToString())
    file.write(GRAPH + varint(len(rest) + sum(len(INITIALIZER + varint(size)) + size for size in sizes)))
    file.write(rest)
    for (head, held), size in zip(heads, sizes, strict=True):
        file.write(INITIALIZER + varint(size) + head)
        if isinstance(held, InFile):
            held.tofile(file)
        elif held is not None:
            data = held.tobytes()
            if len(data) != held.nbytes:
                raise ValueError(f"weight {held.name!r} has {len(data)} bytes, {held.nbytes} expected")
            file.write(data)


def _around(model: ir.Model) -> onnx.ModelProto:
    """The fields of a model beside its graph."""
    empty = ir.Model(
        ir.Graph((), (), nodes=(), opset_imports=model.opset_imports),
        ir_version=model.ir_version,
        producer_name=model.producer_name,
        producer_version=model.producer_version,
        domain=model.domain,
        model_version=model.model_version,
        doc_string=model.doc_string,
        functions=tuple(model.functions.values()),
        metadata_props=model.metadata_props,
        device_configurations=model.device_configurations,
    )
    proto = ir.to_proto(empty)
    proto.ClearField("graph")
    return proto


def _is_streamed(held: ir.TensorProtocol) -> bool:
    external = isinstance(held, ir.ExternalTensor) or held.dtype == ir.DataType.STRING
    return not external and held.nbytes >= STREAMED_BYTES


def _whole(value: ir.Value) -> bytes:
    assert value.const_value is not None
    return tensor(value.const_value, value.name or "")


def _head(value: ir.Value) -> bytes:
    """A TensorProto without its data, which follow with their size."""
    held = value.const_value
    assert held is not None
    proto = onnx.TensorProto(name=value.name, data_type=int(held.dtype), dims=held.shape.numpy())
    if held.doc_string:
        proto.doc_string = held.doc_string
    for key in sorted(held.metadata_props):
        proto.metadata_props.add(key=key, value=held.metadata_props[key])
    data: bytes = proto.SerializeToString()
    return data + RAW_DATA + varint(held.nbytes)
