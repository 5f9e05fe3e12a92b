"""Weights that stay in the model's own file until they are needed, as those of external data do.

Read with the model they would be in memory twice, as bytes and in the proto, and a third time when it is written.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
import onnx
import onnx_ir as ir

from cuvil_onnx.passes.wire import field, tag

MIN_FILE_BYTES = 1 << 27
"""Smaller files are read, and may then change behind the model's back."""

MIN_BYTES = 1 << 16
"""Smaller weights are read."""

CHUNK = 1 << 20

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_MODEL, _GRAPH, _TENSOR = onnx.ModelProto, onnx.GraphProto, onnx.TensorProto


class InFile(ir.LazyTensor):
    """A tensor whose elements lie in a file, from ``offset`` on; they are read again each time."""

    def __init__(self, file: IO[bytes], offset: int, like: ir.TensorProtocol) -> None:
        super().__init__(
            self._read_all,
            dtype=like.dtype,
            shape=ir.Shape(like.shape.numpy()),
            name=like.name or "",
            doc_string=like.doc_string,
            metadata_props=dict(like.metadata_props),
        )
        self._file = file
        self._offset = offset

    def read(self, start: int, size: int) -> bytes:
        """Some of the tensor's bytes.

        Raises:
            OSError: the file has become shorter.
        """
        data = os.pread(self._file.fileno(), size, self._offset + start)
        while len(data) < size:  # a call reads 2 GB at most
            more = os.pread(self._file.fileno(), size - len(data), self._offset + start + len(data))
            if not more:
                raise OSError(f"weight {self.name!r}: {self._file.name} ends before it does")
            data += more
        return data

    def tobytes(self) -> bytes:
        """All bytes."""
        return self.read(0, self.nbytes)

    def tofile(self, file: IO[bytes]) -> None:
        """Copies the bytes to a file, a small part at a time."""
        for start in range(0, self.nbytes, CHUNK):
            file.write(self.read(start, min(CHUNK, self.nbytes - start)))

    def _read_all(self) -> ir.TensorProtocol:
        array = np.frombuffer(self.tobytes(), self.dtype.numpy()).reshape(self.shape.numpy())
        return ir.Tensor(array, dtype=self.dtype)


def without_weights(path: Path) -> tuple[onnx.ModelProto, dict[str, int]] | None:
    """The model of a file without the data of its large weights, and the offset of each in the file.

    None for a small file, one that has no such weights, and one that is not as writers of protobuf usually leave it;
    it may be damaged then.
    """
    if path.stat().st_size < MIN_FILE_BYTES:
        return None
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            parts, offsets = _split(data)
        except (ValueError, IndexError):
            return None
    if not offsets:
        return None
    proto = onnx.ModelProto()
    proto.ParseFromString(b"".join(parts))
    return proto, offsets


def attach(model: ir.Model, path: Path, offsets: dict[str, int]) -> None:
    """Lets the weights of the main graph be read from the file."""
    file = path.open("rb")
    for name, offset in offsets.items():
        value = model.graph.initializers[name]
        assert value.const_value is not None
        value.const_value = InFile(file, offset, value.const_value)


def _split(data: mmap.mmap) -> tuple[list[bytes], dict[str, int]]:
    """The bytes of the model without those weights, and where they are.

    Raises:
        ValueError, IndexError: these are no messages, or the graph is in several pieces.
    """
    graph: list[bytes] = []
    around: list[bytes] = []
    offsets: dict[str, int] = {}
    for number, start, payload, end in _fields(data, 0, len(data)):
        if number != _MODEL.GRAPH_FIELD_NUMBER:
            around.append(data[start:end])
            continue
        if graph:
            raise ValueError("two graphs")
        kept = payload  # from here on nothing has been taken over yet
        for inner, inner_start, tensor, tensor_end in _fields(data, payload, end):
            if inner != _GRAPH.INITIALIZER_FIELD_NUMBER or tensor_end - tensor < MIN_BYTES:
                continue
            found = _head(data, tensor, tensor_end)
            if found is None:
                continue
            head, name, offset = found
            if name in offsets:
                raise ValueError("two weights of one name")
            offsets[name] = offset
            graph += data[kept:inner_start], field(tag(_GRAPH.INITIALIZER_FIELD_NUMBER), head)
            kept = tensor_end
        graph.append(data[kept:end])
    return [*around, field(tag(_MODEL.GRAPH_FIELD_NUMBER), b"".join(graph))], offsets


def _head(data: mmap.mmap, start: int, end: int) -> tuple[bytes, str, int] | None:
    """A TensorProto without its data, its name, and where the data is; None when it is not all in one place."""
    place, rest = None, []
    for number, begin, payload, stop in _fields(data, start, end):
        if number == _TENSOR.RAW_DATA_FIELD_NUMBER and place is None:
            place = payload, stop - payload
        elif stop - begin >= MIN_BYTES:
            return None
        else:
            rest.append(data[begin:stop])
    if place is None or place[1] < MIN_BYTES:
        return None
    head = b"".join(rest)
    proto = onnx.TensorProto()
    proto.ParseFromString(head)
    dtype, whole = ir.DataType(proto.data_type), proto.data_location == onnx.TensorProto.DEFAULT
    size = int(np.prod(proto.dims, dtype=object)) * dtype.bitwidth
    if not proto.name or not whole or dtype.bitwidth % 8 or size != 8 * place[1]:
        return None
    return head, proto.name, place[0]


def _fields(data: mmap.mmap, position: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """(number, start, start of its payload, end) of each field of a message."""
    while position < end:
        start = position
        key, position = _varint(data, position)
        kind = key & 7
        size = {_FIXED64: 8, _FIXED32: 4}.get(kind, 0)
        if kind == _BYTES:
            size, position = _varint(data, position)
        payload = position
        if kind == _VARINT:
            _, position = _varint(data, position)
        elif kind not in (_FIXED64, _FIXED32, _BYTES):
            raise ValueError(f"wire type {kind}")
        position += size
        if position > end:
            raise ValueError("a field ends behind its message")
        yield key >> 3, start, payload, position


def _varint(data: mmap.mmap, position: int) -> tuple[int, int]:
    """A number and the position behind it."""
    number = shift = 0
    while True:
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")
