"""External data: where it is, whether it is all there, and reading in what is not a weight of the main graph (exact).

Readers resolve the location of a Constant's or a function's data against the working folder or not at all, so those
tensors become part of the model at once; initializers of the main graph stay mapped files.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx_ir as ir

from cuvil_onnx.errors import ModelLoadError


def checked(proto: onnx.ModelProto, folder: Path) -> tuple[onnx.ModelProto, set[Path]]:
    """The model without external data below its main graph, and the files its data is in.

    Args:
        proto: never changed; a copy is returned when anything has to be read in.
        folder: what locations are relative to.

    Raises:
        ModelLoadError: a location that is missing, malformed, too short or outside of ``folder``.
    """
    files = {_place(tensor, folder)[0] for tensor in proto.graph.initializer if _is_external(tensor)}
    if not any(map(_is_external, _nested(proto))):
        return proto, files
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for tensor in _nested(copy):
        if not _is_external(tensor):
            continue
        file, offset, size = _place(tensor, folder)
        files.add(file)
        with file.open("rb") as stream:
            stream.seek(offset)
            tensor.raw_data = stream.read(size)
        del tensor.external_data[:]
        tensor.data_location = onnx.TensorProto.DEFAULT
    return copy, files


def _is_external(tensor: onnx.TensorProto) -> bool:
    return bool(tensor.data_location == onnx.TensorProto.EXTERNAL)


def _nested(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """The tensors in attributes, in subgraphs and in functions."""
    pending: list[onnx.GraphProto | onnx.FunctionProto] = [proto.graph, *proto.functions]
    while pending:
        holder = pending.pop()
        if isinstance(holder, onnx.GraphProto) and holder is not proto.graph:
            yield from holder.initializer
        for node in holder.node:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    yield attribute.t
                yield from attribute.tensors
                if attribute.HasField("g"):
                    pending.append(attribute.g)
                pending.extend(attribute.graphs)


def check_declared(proto: onnx.ModelProto) -> None:
    """ModelLoadError for external data whose description makes no sense, wherever its file is."""
    for tensor in (*proto.graph.initializer, *_nested(proto)):
        if _is_external(tensor):
            _declared(tensor)


def _declared(tensor: onnx.TensorProto) -> tuple[str, int, int]:
    """(location, offset, bytes) of a tensor's data, as the model says."""
    entries = {e.key: e.value for e in tensor.external_data}
    location = entries.get("location", "")
    name = f"weight {tensor.name!r}"
    try:
        size = -(-ir.DataType(tensor.data_type).bitwidth * _count(tensor) // 8)
        offset, length = int(entries.get("offset") or 0), int(entries.get("length") or size)
    except (ValueError, TypeError) as error:
        raise ModelLoadError(f"{name}: malformed external data: {error}") from error
    if not location or "\0" in location or offset < 0 or length != size:
        found = f"location {location!r}, offset {offset}, length {length}"
        raise ModelLoadError(f"{name}: malformed external data: {found}; its shape and type require {size} bytes")
    return location, offset, size


def _place(tensor: onnx.TensorProto, folder: Path) -> tuple[Path, int, int]:
    """(file, offset, bytes) of a tensor's data, all of which is there."""
    location, offset, size = _declared(tensor)
    name = f"weight {tensor.name!r}"
    file = (folder / location).resolve()
    if not file.is_relative_to(folder.resolve()):
        raise ModelLoadError(f"{name}: {location} leads out of the model's folder")
    if not file.is_file():
        raise ModelLoadError(f"{name}: external data file {folder / location} does not exist")
    if file.stat().st_size < offset + size:
        raise ModelLoadError(f"{name}: {folder / location} has {file.stat().st_size} bytes, {offset + size} required")
    return file, offset, size


def _count(tensor: onnx.TensorProto) -> int:
    count = 1
    for dim in tensor.dims:
        if dim < 0:
            raise ValueError(f"a dimension of {dim}")
        count *= dim
    return count
