"""Writes a model file weight by weight, so that the weights are not in memory once more, and again as bytes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import IO

import onnx
import onnx_ir as ir

STREAMED_BYTES = 1 << 16
"""Smaller tensors are serialised with the rest."""

# Field numbers and wire type 2 (length-delimited) of onnx.proto: ModelProto.graph, GraphProto.initializer,
# TensorProto.raw_data.
GRAPH, INITIALIZER, RAW_DATA = (bytes([number << 3 | 2]) for number in (7, 5, 9))


def stream_model(model: ir.Model, file: IO[bytes]) -> None:
    """Writes ``model`` as the bytes of one ModelProto.

    The fields of a message may come in any order: the graph's initializers follow its other fields.
    """
    with _set_aside(model) as large:
        proto = ir.to_proto(model)
    tensors = list(proto.graph.initializer)
    heads, sizes = [], []
    for tensor in tensors:
        held = large.get(tensor.name) if tensor.data_location == onnx.TensorProto.EXTERNAL else None
        if held is not None:
            del tensor.external_data[:]
            tensor.ClearField("data_location")
        head = tensor.SerializeToString() + (b"" if held is None else RAW_DATA + _varint(held.nbytes))
        heads.append((head, held))
        sizes.append(len(head) + (0 if held is None else held.nbytes))
    del proto.graph.initializer[:]
    graph = proto.graph.SerializeToString()
    proto.ClearField("graph")
    file.write(proto.SerializeToString())
    file.write(GRAPH + _varint(len(graph) + sum(len(INITIALIZER + _varint(size)) + size for size in sizes)))
    file.write(graph)
    for (head, held), size in zip(heads, sizes, strict=True):
        file.write(INITIALIZER + _varint(size) + head)
        if held is not None:
            data = held.tobytes()
            if len(data) != held.nbytes:
                raise ValueError(f"weight {held.name!r} has {len(data)} bytes, {held.nbytes} expected")
            file.write(data)


@contextlib.contextmanager
def _set_aside(model: ir.Model) -> Iterator[dict[str, ir.TensorProtocol]]:
    """The large weights of the main graph by name; meanwhile the model refers to a file that does not exist."""
    found: list[tuple[ir.Value, ir.TensorProtocol]] = []
    try:
        for value in model.graph.initializers.values():
            tensor = value.const_value
            plain = tensor is not None and not isinstance(tensor, ir.ExternalTensor)
            if tensor is None or not plain or tensor.nbytes < STREAMED_BYTES or tensor.dtype == ir.DataType.STRING:
                continue
            found.append((value, tensor))
            value.const_value = ir.ExternalTensor(
                "-",
                0,
                tensor.nbytes,
                tensor.dtype,
                shape=ir.Shape(tensor.shape.numpy()),
                name=value.name or "",
                doc_string=tensor.doc_string,
                metadata_props=dict(tensor.metadata_props),
            )
        yield {value.name or "": tensor for value, tensor in found}
    finally:
        for value, tensor in found:
            value.const_value = tensor


def _varint(number: int) -> bytes:
    """A number in protobuf's encoding: seven bits a byte, the lowest first."""
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*data, number])
